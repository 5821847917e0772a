"""Rooted ops: direct in one step, or over a binomial tree.

        root 0:  step 0  0 -> 4            tree broadcast: who has the data sends it half-way round; log2 n steps.
                 step 1  0 -> 2, 4 -> 6    reduce is the mirror. scatter and gather move, along the same tree, the
                 step 2  0 -> 1, 2 -> 3,   segments of a subtree at once.
                         4 -> 5, 6 -> 7

Cost: direct 1 step and (n - 1) of the root's chunks over its links; tree ceil(log2 n) steps; of broadcast and
reduce each rank receives B once, of gather and scatter a segment passes through at most log2 n ranks.
Large broadcasts and reductions are rings (``Halves``): scatter and all_gather, reduce_scatter and gather.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Single
from collectives.group import Group
from collectives.schedule import ROOTED, Rows, Schedule

__all__ = ["DIRECT", "TREE"]


def _direct(op: str, group: Group, root: int, pairs: object) -> Schedule:
    n = group.size
    others = np.delete(np.arange(n), root)
    if op in ("broadcast", "reduce"):
        source, target = (root, others) if op == "broadcast" else (others, root)
        return Schedule(op, "direct", n, 1, Rows.of(0, source, target, 0, reduce=op == "reduce"), root=root)
    source, target = (root, others) if op == "scatter" else (others, root)
    return Schedule(op, "direct", n, n, Rows.of(0, source, target, others), root=root)


def _tree(op: str, group: Group, root: int, pairs: object) -> Schedule:
    """Ranks by their distance from the root along the cores' order; place v hears from v without its lowest bit."""
    n = group.size
    order = np.argsort(group.cores)
    order = np.roll(order, -int(np.flatnonzero(order == root)[0]))
    levels = max(n - 1, 0).bit_length()
    parts = []
    for level in range(levels):
        span = 1 << level  # deepest pairs first, as for reduce and gather
        child = np.arange(span, n, 2 * span)
        down = op in ("broadcast", "scatter")
        step = levels - 1 - level if down else level
        low, high = order[child - span], order[child]
        source, target = (low, high) if down else (high, low)
        if op in ("broadcast", "reduce"):
            parts.append(Rows.of(step, source, target, 0, reduce=op == "reduce"))
        else:  # slots follow the order, so a subtree's segments are adjacent
            parts.append(Rows.of(step, source, target, child, count=np.minimum(span, n - child)))
    if op in ("broadcast", "reduce"):
        return Schedule(op, "tree", n, 1, Rows.join(parts), root=root)
    return Schedule(op, "tree", n, n, Rows.join(parts), root=root, slot_chunk=order.astype(np.int32))


DIRECT = Single("direct", ROOTED, _direct)
TREE = Single("tree", ROOTED, _tree)
