"""Schedule -> the order of additions of each chunk, as the native engine's postfix programs."""

from __future__ import annotations

import numpy as np

from collectives.dataflow import Dataflow, trace
from collectives.diagnosis import describe
from collectives.schedule import REDUCING, Schedule, ScheduleError

__all__ = ["COMBINE", "compile_programs", "program_table"]

COMBINE = -1


def compile_programs(schedule: Schedule, flow: Dataflow | None = None) -> list[list[int]]:
    """One postfix program a chunk, for the ops that reduce; none for the others.

    A value from 0 up pushes that group rank's input; -1 adds the two on top. all_reduce and reduce: part
    i of the tensor in ``chunks`` equal parts. reduce_scatter: rank r's segment in parts r * k to r * k + k - 1.

    Raises :class:`ScheduleError` where a chunk does not hold each contribution once, or where two ranks would
    end with different orders of additions.
    """
    if schedule.op not in REDUCING:
        return []
    return program_table(flow or trace(schedule)).tolist()


def program_table(flow: Dataflow) -> np.ndarray:
    """[chunks, 2 * ranks - 1] the programs of a reducing schedule, int16. Raises as :func:`compile_programs`."""
    if flow.programs is not None:
        return flow.programs
    schedule, n = flow.schedule, flow.schedule.ranks
    wrong = (flow.final < 0) | (flow.leaves[flow.final] != n)
    if wrong.any():
        raise ScheduleError(describe(flow, int(np.argmax(wrong))))
    order = np.argsort(flow.required_chunk, kind="stable")
    chunk, value = flow.required_chunk[order], flow.final[order]
    first = np.ones(len(chunk), bool)
    first[1:] = (chunk[1:] != chunk[:-1]) | (value[1:] != value[:-1])
    order, chunk = order[first], chunk[first]
    table = _postfix(flow, flow.final[order])
    complete = (np.sort(table, axis=1)[:, n - 1 :] == np.arange(n, dtype=np.int16)).all(axis=1)
    if not complete.all():
        raise ScheduleError(describe(flow, int(order[int(np.argmin(complete))])))
    again = np.flatnonzero(chunk[1:] == chunk[:-1]) + 1  # ranks that added for themselves
    bad = (table[again] != table[again - 1]).any(axis=1)
    if bad.any():
        at = int(again[int(np.argmax(bad))])
        a, b = flow.required_rank[order[at - 1]], flow.required_rank[order[at]]
        raise ScheduleError(
            f"{schedule}: ranks {a} and {b} add chunk {chunk[at]} in different orders: "
            f"{table[at - 1].tolist()} and {table[at].tolist()}"
        )
    keep = np.ones(len(chunk), bool)
    keep[again] = False
    return table[keep]


def _postfix(flow: Dataflow, values: np.ndarray) -> np.ndarray:
    """[values, 2 * ranks - 1] values that have as many leaves as there are ranks, in postfix."""
    n = flow.schedule.ranks
    width = 2 * n - 1
    out = np.full(len(values) * width, COMBINE, np.int16)
    node = values.astype(np.int64)
    at = np.arange(len(values), dtype=np.int64) * width
    while len(node):
        leaf = node < n
        out[at[leaf]] = node[leaf]
        node, at = node[~leaf], at[~leaf]
        left, right = flow.left[node - n].astype(np.int64), flow.right[node - n].astype(np.int64)
        middle = at + 2 * flow.leaves[left] - 1
        node, at = np.concatenate([left, right]), np.concatenate([at, middle])
    return out.reshape(len(values), width)
