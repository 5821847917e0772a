"""Ring: a directed cycle through all ranks, or several on disjoint wires ("channels").

        0 --> 1        reduce_scatter: in step t the rank at place q sends on the partial sum of the segment of
        ^     |        place q - 1 - t, and adds what it receives; after n - 1 steps each has its own.
        |     v        all_gather: in step t it sends on the segment of place q - t.
        3 <-- 2        all_reduce: the one and then the other.

Cost, C the bytes of a segment, h channels: n - 1 steps and (n - 1) C a rank for each half; (n - 1) C / h on each
directed link. The order of additions of a segment begins behind its owner and goes round to it.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Half, Halves
from collectives.group import Group
from collectives.schedule import Rows

__all__ = ["RING"]


def _half(group: Group, lag: int, *, reduce: bool) -> Half:
    n, order = group.size, group.rings
    h = len(order)
    step = np.arange(n - 1)[:, None, None]
    channel = np.arange(h)[None, :, None]
    place = np.arange(n)[None, None, :]
    segment = order[channel, (place - lag - step) % n]
    following = order[channel, (place + 1) % n]
    rows = Rows.of(
        step, order[channel, place], following, segment * h + channel, reduce=reduce, channel=channel
    )
    return Half(rows, n - 1, h)


RING = Halves(
    "ring",
    reduce_scatter=lambda group: _half(group, 1, reduce=True),
    all_gather=lambda group: _half(group, 0, reduce=False),
)
