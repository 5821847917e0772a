"""When a rank computes and when it communicates, as disjoint intervals of simulated time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from neuron_dist.simulation.intervals import Split, clip, split, union
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["Busy", "busy_of", "intersect", "within"]


@dataclass(frozen=True, eq=False)
class Busy:
    """Disjoint [n, 2] intervals of (start, end) nanoseconds of one rank."""

    compute: np.ndarray
    """The union of its operators."""
    communication: np.ndarray
    """The union of its collectives and messages."""

    @cached_property
    def overlapped(self) -> np.ndarray:
        """Communication beside compute."""
        return intersect(self.compute, self.communication)

    @cached_property
    def exposed(self) -> np.ndarray:
        """Communication that nothing computed beside."""
        if not len(self.communication):
            return self.communication
        start, end = int(self.communication[0, 0]), int(self.communication[-1, 1])
        edges = np.concatenate([[start], clip(self.compute, start, end).ravel(), [end]])
        between = edges.reshape(-1, 2)
        return intersect(self.communication, between[between[:, 1] > between[:, 0]])

    def split(self, start: int, end: int) -> Split:
        """How the span [start, end) divides."""
        return split(
            within(self.compute, start, end), within(self.communication, start, end), start, end
        )


def busy_of(trace: RankTrace) -> Busy:
    """When the rank of ``trace`` was busy."""
    kernels, transfers = trace.of(Kind.KERNEL), trace.of(Kind.COLLECTIVE, Kind.MESSAGE)
    return Busy(
        union(kernels["start_ns"], kernels["end_ns"]),
        union(transfers["start_ns"], transfers["end_ns"]),
    )


def within(intervals: np.ndarray, start: int, end: int) -> np.ndarray:
    """The part of disjoint, sorted ``intervals`` in [start, end); looks at no others."""
    first = int(np.searchsorted(intervals[:, 1], start, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end, side="left"))
    return clip(intervals[first:last], start, end)


def intersect(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What is in both of two sets of disjoint intervals."""
    times = np.concatenate([a.ravel(), b.ravel()])
    rises = np.tile(np.array([1, -1]), len(a) + len(b))
    order = np.lexsort((rises, times))  # at one time, ends before beginnings
    depth = np.cumsum(rises[order])
    both = np.flatnonzero(depth == 2)
    found = np.stack(
        [times[order[both]], times[order[np.minimum(both + 1, len(order) - 1)]]], axis=1
    )
    return found[found[:, 1] > found[:, 0]]
