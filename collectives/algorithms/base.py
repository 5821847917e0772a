"""What an algorithm is, and how a reduce-scatter and an all-gather make five ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from collectives.group import Group
from collectives.schedule import Rows, Schedule

__all__ = ["Algorithm", "Half", "Halves", "Single", "backwards", "direct_gather", "suits_all"]


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

    @property
    def home(self) -> np.ndarray:
        """The slot of each chunk; only where ``slot_chunk`` is given."""
        assert self.slot_chunk is not None
        home = np.empty(len(self.slot_chunk), np.int64)
        home[self.slot_chunk] = np.arange(len(self.slot_chunk))
        return home


def suits_all(group: Group) -> str:
    return ""


def direct_gather(group: Group, half: Half, root: int) -> tuple[Rows, int]:
    """Each rank's segment straight to the root, and the steps that it takes."""
    n, k = group.size, half.pieces
    others = np.delete(np.arange(n), root)
    if half.slot_chunk is None:
        return Rows.of(0, others, root, others * k, count=k), 1
    slots = half.home.reshape(n, k)[others].ravel()
    return Rows.of(0, np.repeat(others, k), root, slots), 1


def backwards(rows: Rows, steps: int) -> Rows:
    """The rows with time and direction turned round: a gather becomes a scatter."""
    turned = Rows.of(
        steps - 1 - rows.step, rows.dst, rows.src, rows.dst_slot, to=rows.src_slot, count=rows.count,
        channel=rows.channel,
    )  # fmt: skip
    return turned.take(np.argsort(turned.step, kind="stable"))


@dataclass(frozen=True)
class Halves:
    """An algorithm given by its reduce-scatter and its all-gather.

    all_reduce is the one and then the other; reduce is a reduce-scatter whose segments are then sent to the root (``to_root``:
    rows and steps); broadcast sends one segment to each rank, the same way backwards, and then gathers.
    """

    name: str
    reduce_scatter: Callable[[Group], Half]
    all_gather: Callable[[Group], Half]
    why_not: Callable[[Group], str] = suits_all
    to_root: Callable[[Group, Half, int], tuple[Rows, int]] = direct_gather
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
            gather, steps = self.to_root(group, half, root)
            rows = Rows.join([backwards(gather, steps), half.rows.later(steps)])
        else:
            half = self.reduce_scatter(group)
            rows = half.rows
            if op == "reduce":
                rows = Rows.join([rows, self.to_root(group, half, root)[0].later(half.steps)])
            elif op != "reduce_scatter":
                rows = Rows.join([rows, self.all_gather(group).rows.later(half.steps)])
        order = np.zeros(0, np.int32) if half.slot_chunk is None else half.slot_chunk.astype(np.int32)
        return Schedule(op, self.name, n, n * half.pieces, rows, root=root, slot_chunk=order)


@dataclass(frozen=True)
class Single:
    """An algorithm given by one function for the ops that it has."""

    name: str
    ops: frozenset[str]
    make: Callable[..., Schedule]
    why_not: Callable[[Group], str] = suits_all

    def refuses(self, op: str, group: Group) -> str:
        return self.why_not(group) if op in self.ops else f"{self.name} has no {op}"

    def build(self, op: str, group: Group, root: int = 0, pairs: tuple[tuple[int, int], ...] = ()) -> Schedule:
        return self.make(op, group, root, pairs)
