"""What an algorithm is, and how a reduce-scatter and an all-gather make five ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collectives.group import Group
from collectives.schedule import Rows, Schedule

__all__ = ["Algorithm", "Half", "Halves", "Single"]


class Algorithm(Protocol):
    """Builds schedules. ``refuses`` says why an op on a group is not its business, or ''."""

    @property
    def name(self) -> str: ...

    @property
    def ops(self) -> frozenset[str]: ...

    def refuses(self, op: str, group: Group) -> str: ...

    def build(self, op: str, group: Group, root: int = 0, pairs: tuple[tuple[int, int], ...] = ()) -> Schedule: ...


@dataclass(frozen=True, eq=False)
class Half:
    """A reduce-scatter or an all-gather: each rank's segment in ``pieces``, rows over ``steps``."""

    rows: Rows
    steps: int
    pieces: int
    slot_chunk: np.ndarray | None = None
    """As in :class:`Schedule`; None is the identity. Both halves of an algorithm number their slots alike."""


def _nothing(group: Group) -> str:
    return ""


@dataclass(frozen=True)
class Halves:
    """An algorithm given by its reduce-scatter and its all-gather.

    all_reduce is the one and then the other; reduce is a reduce-scatter whose segments are then sent to the root;
    broadcast sends one segment to each rank and then gathers.
    """

    name: str
    reduce_scatter: Callable[[Group], Half]
    all_gather: Callable[[Group], Half]
    why_not: Callable[[Group], str] = _nothing
    ops: frozenset[str] = frozenset({"all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"})

    def refuses(self, op: str, group: Group) -> str:
        return self.why_not(group) if op in self.ops else f"{self.name} has no {op}"

    def build(self, op: str, group: Group, root: int = 0, pairs: tuple[tuple[int, int], ...] = ()) -> Schedule:
        n = group.size
        if op == "all_gather":
            half = self.all_gather(group)
            rows = half.rows
        elif op == "broadcast":
            half = self.all_gather(group)
            rows = Rows.join([_rooted(group, half, root, to_root=False), half.rows.later(1)])
        else:
            half = self.reduce_scatter(group)
            rows = half.rows
            if op == "reduce":
                rows = Rows.join([rows, _rooted(group, half, root, to_root=True).later(half.steps)])
            elif op != "reduce_scatter":
                rows = Rows.join([rows, self.all_gather(group).rows.later(half.steps)])
        order = np.zeros(0, np.int32) if half.slot_chunk is None else half.slot_chunk.astype(np.int32)
        return Schedule(op, self.name, n, n * half.pieces, rows, root=root, slot_chunk=order)


def _rooted(group: Group, half: Half, root: int, *, to_root: bool) -> Rows:
    """Each rank's segment to the root, or from it."""
    n, k = group.size, half.pieces
    others = np.delete(np.arange(n), root)
    if half.slot_chunk is None:
        rank, slot, count = others, others * k, k
    else:
        home = np.empty(n * k, np.int64)
        home[half.slot_chunk] = np.arange(n * k)
        rank, slot, count = np.repeat(others, k), home.reshape(n, k)[others].ravel(), 1
    return Rows.of(0, rank, root, slot, count=count) if to_root else Rows.of(0, root, rank, slot, count=count)


@dataclass(frozen=True)
class Single:
    """An algorithm given by one function for the ops that it has."""

    name: str
    ops: frozenset[str]
    make: Callable[..., Schedule]
    why_not: Callable[[Group], str] = _nothing

    def refuses(self, op: str, group: Group) -> str:
        return self.why_not(group) if op in self.ops else f"{self.name} has no {op}"

    def build(self, op: str, group: Group, root: int = 0, pairs: tuple[tuple[int, int], ...] = ()) -> Schedule:
        return self.make(op, group, root, pairs)
