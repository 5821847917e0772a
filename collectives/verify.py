"""The proof: every rank ends with exactly the contributions that the op demands, for every chunk.

Exact for any number of ranks, not by sampling: the schedule runs on symbols (:mod:`collectives.dataflow`), and
the contributions in each final value are counted. That run also refuses a transfer of a chunk that is not there
yet and two transfers that write one place in one step.
"""

from __future__ import annotations

import numpy as np

from collectives.compile import program_table
from collectives.dataflow import Dataflow, trace
from collectives.diagnosis import describe
from collectives.schedule import REDUCING, Schedule, ScheduleError

__all__ = ["verify"]


def verify(schedule: Schedule) -> Dataflow:
    """Prove ``schedule``; what was found on the way is returned, with the programs of a reduction.

    Raises :class:`ScheduleError` that names the chunk, the rank and the contribution that is lacking or repeated.
    """
    flow = trace(schedule)
    if schedule.op in REDUCING:
        flow.programs = program_table(flow)
        return flow
    wrong = flow.final != flow.required_leaf
    if wrong.any():
        raise ScheduleError(describe(flow, int(np.argmax(wrong))))
    return flow
