"""RDH: recursive halving and doubling over the chips as a hypercube.

        00 --- 01      all_gather: ranks with the same place in their chips exchange pairwise along one axis of
        |      |       the hypercube after the other, 1, 2, 4, 8 ... chunks; then the chip's ranks exchange all.
        10 --- 11      reduce_scatter is the mirror: each rank of a chip sums a share, then halves go out.

Chips are labelled so that neighbours in the hypercube are neighbours on the torus (AWS's routing ids), and each
rank of a chip begins with another axis, so that all links are in use. Needs a power of two of evenly filled chips.
Cost, P = 2^p chips of k ranks: p + 1 steps a half (p with one rank a chip); (n - k) C / k a rank over the links.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Half, Halves
from collectives.group import Group
from collectives.schedule import Rows

__all__ = ["RDH"]


def _exchanges(P: int, k: int) -> list[list[np.ndarray]]:
    """For each halving step (chip, place in the chip, chip of the chunk): what goes out, and its partner chip."""
    p = P.bit_length() - 1
    A, D = (a.ravel() for a in np.meshgrid(np.arange(P), np.arange(P), indexing="ij"))
    steps = []
    for t in range(p):
        columns = []
        for j in range(k):
            axis = (t + j) % p
            done = sum(1 << ((u + j) % p) for u in range(t))
            out = (((A ^ D) & done) == 0) & (((A ^ D) >> axis & 1) == 1)
            a, d = A[out], D[out]
            columns.append(np.stack([a, np.full_like(a, j), d, a ^ (1 << axis)]))
        steps.append(list(np.concatenate(columns, axis=1)))
    return steps


def _reduce_scatter(group: Group) -> Half:
    M = group.by_chip
    P, k = M.shape
    parts, first = [], 0
    if k > 1:
        chip, j, turn, D = np.ix_(np.arange(P), np.arange(k), np.arange(1, k), np.arange(P))
        parts.append(Rows.of(0, M[chip, (j + turn) % k], M[chip, j], M[D, j], reduce=True))
        first = 1
    steps = _exchanges(P, k)
    for t, (a, j, d, partner) in enumerate(steps):
        parts.append(Rows.of(first + t, M[a, j], M[partner, j], M[d, j], reduce=True))
    return Half(Rows.join(parts), first + len(steps), 1)


def _all_gather(group: Group) -> Half:
    M = group.by_chip
    P, k = M.shape
    steps = _exchanges(P, k)
    parts = []
    for t, (a, j, d, partner) in enumerate(reversed(steps)):
        # the halving step backwards: what a sent away, its partner now gives back
        parts.append(Rows.of(t, M[partner, j], M[a, j], M[d, j]))
    if k > 1:
        chip, j, turn, D = np.ix_(np.arange(P), np.arange(k), np.arange(1, k), np.arange(P))
        parts.append(Rows.of(len(steps), M[chip, j], M[chip, (j + turn) % k], M[D, j]))
    return Half(Rows.join(parts), len(steps) + (k > 1), 1)


def _why_not(group: Group) -> str:
    P = len(group.by_chip)
    return "" if P & (P - 1) == 0 else f"{P} chips are not a power of two"


RDH = Halves("rdh", _reduce_scatter, _all_gather, _why_not)
