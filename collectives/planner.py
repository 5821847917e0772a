"""Choose, build, prove, price and compile: one call from an op to what the engine needs, cached."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from collectives.algorithms import changes, lookup
from collectives.cost import Price, Pricer
from collectives.group import Group
from collectives.schedule import Schedule
from collectives.select import ENVIRONMENT, Choice, choose
from collectives.topology import Cluster
from collectives.verify import verify

__all__ = ["Candidate", "Plan", "plan"]


@dataclass(eq=False)
class _Prepared:
    """What does not depend on the size: proved, routed, compiled."""

    schedule: Schedule
    pricer: Pricer
    table: np.ndarray

    @cached_property
    def programs(self) -> list[list[int]]:
        return self.table.tolist()


@dataclass(frozen=True)
class Candidate:
    """An algorithm that was not taken."""

    algorithm: str
    reason: str
    time_ns: float | None
    """None if it refuses the group."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How a collective runs: proved, priced, compiled."""

    op: str
    nbytes: int
    group: Group
    choice: Choice
    price: Price
    ready: _Prepared = field(repr=False)
    root: int = 0
    pairs: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @property
    def algorithm(self) -> str:
        return self.choice.name

    @property
    def schedule(self) -> Schedule:
        return self.ready.schedule

    @property
    def programs(self) -> list[list[int]]:
        """The order of additions of each chunk, see :func:`collectives.compile.compile_programs`; empty for ops
        that add nothing."""
        return self.ready.programs

    @property
    def program_table(self) -> np.ndarray:
        """The same as [chunks, 2 * ranks - 1] int16, without lists."""
        return self.ready.table

    @property
    def time_ns(self) -> float:
        """Simulated time from the last arrival to the end."""
        return self.price.time_ns

    @property
    def steps(self) -> int:
        return self.schedule.steps

    @cached_property
    def bytes_per_link(self) -> dict[str, int]:
        """Bytes over each directed link in use, by its name."""
        return self.price.bytes_per_link

    @property
    def rejected(self) -> tuple[tuple[str, str], ...]:
        """(algorithm, why not) for each that has this op."""
        return self.choice.rejected

    def candidates(self) -> list[Candidate]:
        """The rejected algorithms with their prices: builds each, so it is slower than the plan itself."""
        found = []
        for name, reason in self.rejected:
            try:
                algorithm = lookup(name, self.op)
            except ValueError:
                found.append(Candidate(name, reason, None))
                continue
            time_ns = None
            if not algorithm.refuses(self.op, self.group):
                schedule = algorithm.build(self.op, self.group, self.root, self.pairs)
                time_ns = Pricer(schedule, self.group).price(self.nbytes).time_ns
            found.append(Candidate(name, reason, time_ns))
        return found


def plan(
    op: str,
    nbytes: int,
    ranks: Sequence[int],
    cluster: Cluster,
    *,
    root: int = 0,
    algorithm: str | None = None,
    pairs: Sequence[tuple[int, int]] = (),
) -> Plan:
    """The plan of ``op`` on ``nbytes`` bytes for the global ``ranks`` on ``cluster``.

    Bytes count the whole collective, as in :meth:`collectives.cost.Pricer.price`. ``root`` and ``pairs`` (of a
    permute) are group ranks. Groups of one shape share schedules, proofs and programs; each size is priced once.

    Raises :class:`collectives.schedule.ScheduleError` (unknown op or algorithm, one that refuses the group, or a
    registered one whose schedule is wrong) and :class:`collectives.topology.ClusterError` (a rank without a core).
    """
    group = _group(cluster, tuple(ranks))
    key = tuple(tuple(p) for p in pairs)
    return _plan(op, int(nbytes), group, root, algorithm, key, os.environ.get(ENVIRONMENT, ""), changes())


@lru_cache(maxsize=1024)
def _group(cluster: Cluster, ranks: tuple[int, ...]) -> Group:
    group = Group(cluster, ranks)
    return _of_shape(cluster, group.shape)


@lru_cache(maxsize=1024)
def _of_shape(cluster: Cluster, shape: tuple[int, ...]) -> Group:
    return Group.on_cores(cluster, shape)


@lru_cache(maxsize=4096)
def _plan(
    op: str,
    nbytes: int,
    group: Group,
    root: int,
    algorithm: str | None,
    pairs: tuple[tuple[int, int], ...],
    environment: str,
    registry: int,
) -> Plan:
    choice = choose(op, nbytes, group, algorithm)
    ready = _prepared(op, choice.name, group, root, pairs, registry)
    return Plan(op, nbytes, group, choice, ready.pricer.price(nbytes), ready, root, pairs)


@lru_cache(maxsize=128)
def _prepared(
    op: str, name: str, group: Group, root: int, pairs: tuple[tuple[int, int], ...], registry: int
) -> _Prepared:
    schedule = lookup(name, op).build(op, group, root, pairs)
    table = verify(schedule).programs
    empty = np.zeros((0, 2 * group.size - 1), np.int16)
    return _Prepared(schedule, Pricer(schedule, group), empty if table is None or op == "barrier" else table)
