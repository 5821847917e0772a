"""A collective as a static list of transfers between ranks over chunks, the object that is proved, priced and run.

Every rank holds numbered *slots*. Slot s < ``chunks`` is the home of one chunk of the data (``slot_chunk[s]``;
the identity unless the algorithm numbers its slots otherwise, so that what travels together is adjacent); slots
from ``chunks`` on are scratch, each of the size of the chunk that it stands for.

A transfer moves ``count`` adjacent slots from ``src`` to ``dst`` in ``step``, and either replaces what is there
or (``reduce``) adds to it: new = old + received. All transfers of a step read what was there before the step.
Several may add to one slot in one step: they do so in the order of the rows. ``src == dst`` is a local copy.

What the chunks are depends on the op; n ranks, k pieces:

    all_reduce, reduce, broadcast, send   the tensor in K equal parts [numel * i // K, numel * (i + 1) // K)
    reduce_scatter, all_gather,           n segments, one a rank, each in k parts: chunk = segment * k + part
    gather, scatter, permute
    all_to_all                            chunk = (source * n + destination) * k + part
    barrier                               an all_reduce of nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["OPS", "REDUCING", "Rows", "Schedule", "ScheduleError", "chunk_bounds"]

OPS = (
    "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "gather", "scatter", "all_to_all",
    "permute", "send", "barrier",
)  # fmt: skip
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter", "barrier"})
WHOLE = frozenset({"all_reduce", "reduce", "broadcast", "send", "barrier"})
ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})

COLUMNS = ("step", "src", "dst", "src_slot", "dst_slot", "count", "reduce", "channel")


class ScheduleError(ValueError):
    """A schedule that is malformed or does not do what its op demands; says where."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Transfers as columns of equal length."""

    step: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    src_slot: np.ndarray
    dst_slot: np.ndarray
    count: np.ndarray
    reduce: np.ndarray
    channel: np.ndarray

    @classmethod
    def of(
        cls, step: Any, src: Any, dst: Any, slot: Any, *, to: Any = None, count: Any = 1, reduce: Any = False,
        channel: Any = 0,
    ) -> Rows:  # fmt: skip
        """Rows from arrays or numbers that broadcast against one another; ``to`` is the slot at the destination."""
        columns = np.broadcast_arrays(step, src, dst, slot, slot if to is None else to, count, reduce, channel)
        kinds = [np.int32] * 6 + [np.bool_, np.int32]
        return cls(*(np.ascontiguousarray(c.ravel(), k) for c, k in zip(columns, kinds, strict=True)))

    @classmethod
    def join(cls, parts: Iterable[Rows]) -> Rows:
        """All rows of ``parts``, one after the other."""
        parts = list(parts)
        if not parts:
            return cls.of(*[np.zeros(0, np.int32)] * 4)
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS))

    def take(self, index: Any) -> Rows:
        """The rows that a mask, slice or index array selects."""
        return Rows(*(getattr(self, name)[index] for name in COLUMNS))

    def later(self, steps: int) -> Rows:
        """The same rows, some steps later."""
        return Rows(self.step + np.int32(steps), *(getattr(self, name) for name in COLUMNS[1:]))

    def placed(self, ranks: np.ndarray, slots: np.ndarray, width: int = 1, channel: int = 0) -> Rows:
        """The rows of an algorithm on part of a group: its rank r is ``ranks[r]``, each of its slots s stands
        for ``width`` slots from ``slots[s]`` on, and its channels are numbered from ``channel``."""
        return Rows.of(
            self.step, ranks[self.src], ranks[self.dst], slots[self.src_slot], to=slots[self.dst_slot],
            count=self.count * width, reduce=self.reduce, channel=self.channel + channel,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, eq=False)
class Schedule:
    """One op on ``ranks`` ranks as an algorithm does it. Rows are sorted by step (in their order inside a step)."""

    op: str
    algorithm: str
    ranks: int
    chunks: int
    rows: Rows
    root: int = 0
    pairs: tuple[tuple[int, int], ...] = ()
    """permute: (source, destination)."""
    slot_chunk: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ScheduleError(f"unknown op {self.op!r}, expected one of {', '.join(OPS)}")
        if not len(self.slot_chunk):
            object.__setattr__(self, "slot_chunk", np.arange(self.chunks, dtype=np.int32))
        if self.chunks % self.segments:
            raise ScheduleError(f"{self.chunks} chunks do not divide into {self.segments} segments")
        step = self.rows.step
        if np.any(step[1:] < step[:-1]):
            object.__setattr__(self, "rows", self.rows.take(np.argsort(step, kind="stable")))

    @property
    def segments(self) -> int:
        """Parts of the data that have owners of their own: 1, the ranks, or the ranks squared."""
        if self.op in WHOLE:
            return 1
        return self.ranks**2 if self.op == "all_to_all" else self.ranks

    @property
    def pieces(self) -> int:
        """Chunks of one segment."""
        return self.chunks // self.segments

    @property
    def slots(self) -> int:
        """Slots of a rank, scratch included."""
        return len(self.slot_chunk)

    @property
    def steps(self) -> int:
        """Steps in which data moves from rank to rank."""
        moving = self.rows.step[self.rows.src != self.rows.dst]
        return int(np.count_nonzero(moving[1:] != moving[:-1])) + 1 if len(moving) else 0

    @property
    def home(self) -> np.ndarray:
        """The slot of each chunk."""
        home = np.empty(self.chunks, np.int64)
        home[self.slot_chunk[: self.chunks]] = np.arange(self.chunks)
        return home

    def __str__(self) -> str:
        return f"{self.algorithm} {self.op} on {self.ranks} ranks"


def chunk_bounds(schedule: Schedule, numel: int) -> np.ndarray:
    """[chunks + 1] first element of each chunk, where ``numel`` is the size of one segment in elements."""
    pieces = schedule.pieces
    inside = numel * np.arange(pieces, dtype=np.int64) // pieces
    starts = (np.arange(schedule.segments, dtype=np.int64)[:, None] * numel + inside).ravel()
    return np.append(starts, schedule.segments * numel)
