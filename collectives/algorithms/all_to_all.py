"""all_to_all, direct and in two stages.

        direct: each rank sends each other its chunk, one step.
        staged, over instances: (0) inside an instance, everything for the ranks of index y, on whatever instance,
        goes to the own instance's rank y; (1) ranks of one index exchange between the instances.

Cost, C the bytes of one chunk: direct 1 step, (n - 1) C a rank. Staged 2 steps, X (Y - 1) C inside and
(X - 1) Y C between: EFA messages of Y chunks to X - 1 peers in place of 1 chunk to (X - 1) Y.
With counts that differ (all_to_allv) the schedule is the same, priced with the chunks' real sizes
(``Pricer.price(sizes=counts.ravel() * itemsize)``).
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Single
from collectives.group import Group
from collectives.schedule import Rows, Schedule

__all__ = ["DIRECT_ALL_TO_ALL", "STAGED_ALL_TO_ALL"]


def _direct(op: str, group: Group, root: int, pairs: object) -> Schedule:
    n = group.size
    src, turn = (a.ravel() for a in np.meshgrid(np.arange(n), np.arange(1, n), indexing="ij"))
    dst = (src + turn) % n
    return Schedule(op, "mesh", n, n * n, Rows.of(0, src, dst, src * n + dst))


def _staged(op: str, group: Group, root: int, pairs: object) -> Schedule:
    rank = np.array(group.instances)
    X, Y = rank.shape
    n = group.size
    # slot: (source, index y of the destination, instance x of the destination)
    source, y, x = np.ix_(np.arange(n), np.arange(Y), np.arange(X))
    chunk = (source * n + rank[x, y]).ravel()
    instance, own = np.empty(n, np.int64), np.empty(n, np.int64)
    instance[rank.ravel()], own[rank.ravel()] = np.repeat(np.arange(X), Y), np.tile(np.arange(Y), X)
    s, turn = np.ix_(np.arange(n), np.arange(1, Y))
    to = (own[s] + turn) % Y
    inside = Rows.of(0, s, rank[instance[s], to], (s * Y + to) * X, count=X)
    s, to, turn = np.ix_(np.arange(n), np.arange(Y), np.arange(1, X))
    there = (instance[s] + turn) % X
    between = Rows.of(1, rank[instance[s], to], rank[there, to], (s * Y + to) * X + there)
    return Schedule(op, "hier:mesh+mesh", n, n * n, Rows.join([inside, between]), slot_chunk=chunk.astype(np.int32))


def _why_not(group: Group) -> str:
    if len(group.instances) < 2:
        return "the group is on one instance"
    if len(group.instances[0]) < 2:
        return "there is one rank an instance"
    return "" if group.symmetric else "the instances do not hold the same local cores"


DIRECT_ALL_TO_ALL = Single("mesh", frozenset({"all_to_all"}), _direct)
STAGED_ALL_TO_ALL = Single("hier:mesh+mesh", frozenset({"all_to_all"}), _staged, _why_not)
