"""Ranks that a replay could not take to the end of their trace: which waits for what, and why that never comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.spelling import ranks
from neuron_dist.simulation.operations import ANY, Operation
from neuron_dist.simulation.rank_clock import RankClock
from neuron_dist.simulation.trace import Kind, RankTrace
from neuron_dist.simulation.wiring import Wiring

__all__ = ["Unfinished", "find_unfinished"]


@dataclass(frozen=True)
class Unfinished:
    """A rank that waits for what never comes, as in the trace of a run that was killed."""

    rank: int
    waits_for: str
    """``all_reduce 17 of mesh_dp``"""
    because: str
    """``rank 5 never called it``"""
    left_out: int
    """Records of its program that the replay did not reach."""

    def __str__(self) -> str:
        return f"rank {self.rank} waits for {self.waits_for}: {self.because} ({self.left_out} records left out)"


def find_unfinished(
    traces: Sequence[RankTrace],
    ranks: Sequence[RankClock],
    wiring: Wiring,
    times_ns: np.ndarray,
    known: np.ndarray,
) -> list[Unfinished]:
    """One for each rank with an operation that has not ended, in rank order."""
    if known.all():
        return []
    of_issue: dict[tuple[int, int], Operation] = {}
    for wired in wiring.operations:
        of_issue.update(dict.fromkeys(_places(wired.operation), wired.operation))
    not_reached: list[set[int]] = []
    kernels_left: list[int] = []
    for rank in ranks:
        index, _, reached = rank.points.times(times_ns, known)
        not_reached.append(set(index[~reached].tolist()))
        kernels_left.append(int((~rank.kernel_times(times_ns, known)[3]).sum()))
    found = []
    for position, trace in enumerate(traces):
        open_ = [i for i, port in sorted(wiring.ports[position].items()) if not known[port.end[0]]]
        if not open_:
            continue
        if not_reached[position]:  # the first that is not reached waits for a work
            waiting = trace.records[min(not_reached[position])]
            assert waiting["kind"] == Kind.WORK_WAIT
            open_ = [i for i in open_ if trace.records["c"][i] == waiting["c"]]
        operation = of_issue[position, open_[0]]
        why = _because(
            operation, {traces[p].rank for p, i in _places(operation) if i in not_reached[p]}
        )
        left = len(not_reached[position]) + kernels_left[position]
        found.append(Unfinished(trace.rank, str(operation), why, left))
    return found


def _places(operation: Operation) -> list[tuple[int, int]]:
    return [*operation.issues.values(), *([operation.received] if operation.received else [])]


def _because(operation: Operation, on_their_way: set[int]) -> str:
    if operation.channel is not None:
        if ANY in operation.channel:
            return "no message is left for it"
        if not operation.issues:
            return f"rank {operation.ranks[0]} never sent it"
        if operation.received is None and not operation.eager:
            return f"rank {operation.ranks[1]} never called its recv"
    elif missing := [r for r in operation.ranks if r not in operation.issues]:
        return f"{ranks(missing)} never called it"
    if on_their_way:
        return f"{ranks(list(on_their_way))} wait{'s' * (len(on_their_way) == 1)} before it"
    return "the one before it has not ended"
