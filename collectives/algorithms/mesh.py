"""Mesh: everyone writes to everyone at once; writes to far chips are routed through those in between.

        0 <-> 1        Two steps, P chips of k ranks. all_gather: (0) the chunks of each chip go to each other
        | \\ / |        chip, all to the same one of its ranks, and these ranks take turns with the sending chips;
        | / \\ |        (1) they are exchanged inside the chip. reduce_scatter is the mirror: one rank of a chip
        3 <-> 2        adds the chip's chunks for a destination, sends the sum, and the P sums are added there.

One rank a chip, or uneven chips: the exchange inside falls away, one step. Cost: 2 steps a half (3 hops with the
reads inside the chip); (n - k) C a rank over the links, about twice the ring's load on a torus.

``mesh_single_step`` is an all_reduce in one step: every rank sends its whole tensor to all others, and each adds
all of them in rank order. (n - 1) B a rank.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Half, Halves, Single
from collectives.group import Group
from collectives.schedule import Rows, Schedule

__all__ = ["MESH", "MESH_SINGLE_STEP"]


def _server(P: int, k: int) -> np.ndarray:
    """[chip, chip] which of its k ranks a chip sets to work for another: in turns."""
    chip = np.arange(P)
    return (chip[None, :] - chip[:, None]) % P % k


def _reduce_scatter(group: Group) -> Half:
    M = group.by_chip
    P, k = M.shape
    server, parts = _server(P, k), []
    A, D = (a.ravel() for a in np.meshgrid(np.arange(P), np.arange(P), indexing="ij"))
    away = A != D
    for m in range(k):  # destination M[D, m]
        for turn in range(1, k):
            target = np.where(away, server[A, D], m)
            parts.append(Rows.of(0, M[A, (target + turn) % k], M[A, target], M[D, m], reduce=True))
        a, d = A[away], D[away]
        parts.append(Rows.of(1 if k > 1 else 0, M[a, server[a, d]], M[d, m], M[d, m], reduce=True))
    return Half(Rows.join(parts), 2 if k > 1 else 1, 1)


def _all_gather(group: Group) -> Half:
    M = group.by_chip
    P, k = M.shape
    server, parts = _server(P, k), []
    A, D = (a.ravel() for a in np.meshgrid(np.arange(P), np.arange(P), indexing="ij"))
    away = A != D
    for m in range(k):  # chunk of M[A, m]
        a, d = A[away], D[away]
        parts.append(Rows.of(0, M[a, m], M[d, server[d, a]], M[a, m]))
        for turn in range(1, k):
            holder = np.where(away, server[D, A], m)
            parts.append(Rows.of(1, M[D, holder], M[D, (holder + turn) % k], M[A, m]))
    return Half(Rows.join(parts), 2 if k > 1 else 1, 1)


def _single_step(op: str, group: Group, root: int, pairs: object) -> Schedule:
    n = group.size
    src, dst = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    everyone = np.arange(n)
    rows = Rows.join(
        [
            Rows.of(0, src, dst, 0, to=1 + src),  # slot 1 + r: what rank r sent
            Rows.of(1, dst[src > 0], dst[src > 0], 1 + src[src > 0], to=1, reduce=True),
            Rows.of(2, everyone, everyone, 1, to=0),
        ]
    )
    return Schedule(op, MESH_SINGLE_STEP.name, n, 1, rows, slot_chunk=np.zeros(n + 1, np.int32))


MESH = Halves("mesh", _reduce_scatter, _all_gather)
MESH_SINGLE_STEP = Single("mesh_single_step", frozenset({"all_reduce", "barrier"}), _single_step)
