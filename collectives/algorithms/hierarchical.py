"""Hierarchical: one algorithm inside each instance, another between instances over EFA.

        instance 0      instance 1      reduce_scatter: inside first, then between the ranks of one index.
        0  1  2  3 .... 4  5  6  7      all_gather: between first, then inside.
        |__|__|__|      |__|__|__|      all_reduce: reduce inside, all_reduce between on 1 / Y of the data,
        `---- 0 <-> 4, 1 <-> 5, ...     gather inside.

A reduce brings the segments first to the root's instance, over all its EFAs, and then to the root; a broadcast
goes that way backwards. Needs the same local cores on every instance. Cost: the sum of the stages; an all_reduce
over X instances sends 2 (X - 1) / X of the data out of each instance in total.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectives.algorithms.base import Half, Halves
from collectives.group import Group
from collectives.schedule import Rows

__all__ = ["hierarchical"]


def hierarchical(inside: Halves, between: Halves) -> Halves:
    """The mix of two algorithms; its name is ``hier:INSIDE+BETWEEN``."""

    def half(group: Group, part: Callable[[Halves], Callable[[Group], Half]], *, inside_first: bool) -> Half:
        rank = np.array(group.instances)  # [X, Y]
        X, Y = rank.shape
        a = part(inside)(group.subgroup(rank[0]))
        b = part(between)(group.subgroup(rank[:, 0]))
        home_a, home_b = _homes(a), _homes(b)  # slot -> (rank of the stage, piece)
        # slots: (inner segment y, inner piece) x (outer segment x, outer piece)
        width = X * b.pieces
        y, j = np.divmod(home_a, a.pieces)
        x, i = np.divmod(home_b, b.pieces)
        chunk = rank[x[None, :], y[:, None]] * (a.pieces * b.pieces) + j[:, None] * b.pieces + i[None, :]
        inner_slots = np.arange(Y * a.pieces) * width
        inner = [a.rows.placed(rank[instance], inner_slots, width) for instance in range(X)]
        outer, channels = [], int(a.rows.channel.max(initial=0)) + 1
        for slot in range(Y * a.pieces):
            outer.append(b.rows.placed(rank[:, y[slot]], slot * width + np.arange(width), 1, channels))
        stages = (inner, outer) if inside_first else (outer, inner)
        first = a.steps if inside_first else b.steps
        rows = Rows.join([*stages[0], *(r.later(first) for r in stages[1])])
        return Half(rows, a.steps + b.steps, a.pieces * b.pieces, chunk.ravel())

    def why_not(group: Group) -> str:
        if len(group.instances) < 2:
            return "the group is on one instance"
        if not group.symmetric:
            return "the instances do not hold the same local cores"
        if len(group.instances[0]) < 2:
            return "there is one rank an instance"
        inner, outer = group.subgroup(group.instances[0]), group.subgroup([m[0] for m in group.instances])
        return inside.why_not(inner) or between.why_not(outer)

    def to_root(group: Group, half: Half, root: int) -> tuple[Rows, int]:
        rank = np.array(group.instances)
        (x,), (y,) = np.nonzero(rank == root)
        slots = half.home.reshape(group.size, half.pieces)
        other = np.delete(rank, x, axis=0)[:, :, None]
        own = np.delete(rank[x], y)[:, None, None]  # ranks of the root's instance, with all of their index
        index = np.delete(np.arange(rank.shape[1]), y)
        over = Rows.of(0, other, rank[x][None, :, None], slots[other[:, :, 0]])
        inside = Rows.of(1, own, root, slots[rank[:, index].T])
        return Rows.join([over, inside]), 2

    return Halves(
        f"hier:{inside.name}+{between.name}",
        lambda group: half(group, lambda algorithm: algorithm.reduce_scatter, inside_first=True),
        lambda group: half(group, lambda algorithm: algorithm.all_gather, inside_first=False),
        why_not,
        to_root,
    )


def _homes(half: Half) -> np.ndarray:
    """The chunk of each slot of a stage."""
    if half.slot_chunk is not None:
        return half.slot_chunk
    count = int(max(half.rows.src_slot.max(), half.rows.dst_slot.max())) + 1 if len(half.rows) else half.pieces
    return np.arange(count)
