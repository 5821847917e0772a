"""Sets of simulated time as sorted, disjoint intervals: [n, 2] int64 arrays of (start, end) nanoseconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Split", "clip", "length", "overlap", "split", "union"]


class Split(NamedTuple):
    """Where a span of time went on one rank, in nanoseconds; the parts add up to the span."""

    compute_ns: int
    exposed_ns: int
    """Communication that nothing computed beside."""
    overlapped_ns: int
    """Communication beside compute: part of ``compute_ns`` too, so not added."""
    idle_ns: int


def union(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The disjoint intervals that (start, end) pairs in any order cover."""
    order = np.argsort(starts, kind="stable")
    starts, ends = np.asarray(starts)[order], np.maximum.accumulate(np.asarray(ends)[order])
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > ends[:-1]]))
    last = np.concatenate([first[1:] - 1, [len(starts) - 1]])
    merged = np.stack([starts[first], ends[last]], axis=1).astype(np.int64)
    return merged[merged[:, 1] > merged[:, 0]]


def clip(intervals: np.ndarray, start: int, end: int) -> np.ndarray:
    """The part of ``intervals`` within [start, end)."""
    cut = np.clip(intervals, start, end)
    return cut[cut[:, 1] > cut[:, 0]]


def length(intervals: np.ndarray) -> int:
    """Nanoseconds that ``intervals`` cover."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def overlap(a: np.ndarray, b: np.ndarray) -> int:
    """Nanoseconds that are in both."""
    both = np.concatenate([a, b])
    return length(a) + length(b) - length(union(both[:, 0], both[:, 1]))


def split(compute: np.ndarray, communication: np.ndarray, start: int, end: int) -> Split:
    """How the span [start, end) divides, from disjoint intervals of compute and of communication."""
    compute, communication = clip(compute, start, end), clip(communication, start, end)
    both = overlap(compute, communication)
    busy = length(compute)
    exposed = length(communication) - both
    return Split(busy, exposed, both, end - start - busy - exposed)
