"""send and permute: each pair's data over its own route, one step.

        permute  0 -> 1, 1 -> 2, 2 -> 0      a rank sends to at most one and receives from at most one.

Cost: 1 step, the bytes of one message a rank.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Single
from collectives.group import Group
from collectives.schedule import Rows, Schedule, ScheduleError

__all__ = ["POINT_TO_POINT"]


def _make(op: str, group: Group, root: int, pairs: tuple[tuple[int, int], ...]) -> Schedule:
    if op == "send":
        if group.size != 2:
            raise ScheduleError(f"send is from rank 0 to rank 1 of a group of two, got {group.size} ranks")
        return Schedule(op, "p2p", 2, 1, Rows.of(0, [0], 1, 0))
    for side, name in ((0, "sends"), (1, "receives")):
        ends = [p[side] for p in pairs]
        twice = next((e for e in ends if ends.count(e) > 1), None)
        if twice is not None:
            raise ScheduleError(f"permute: rank {twice} {name} twice")
    moved = np.array([p for p in pairs if p[0] != p[1]], np.int64).reshape(-1, 2)
    rows = Rows.of(0, moved[:, 0], moved[:, 1], moved[:, 0])
    return Schedule(op, "p2p", group.size, group.size, rows, pairs=tuple(pairs))


POINT_TO_POINT = Single("p2p", frozenset({"send", "permute"}), _make)
