"""HBM in use over simulated time against the capacity of a core, and what held it at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["OTHER", "Hbm", "Holder", "hbm_of", "hbm_series"]

OTHER = "other"
"""What held memory at a peak and the run did not name: it names the largest."""


@dataclass(frozen=True)
class Holder:
    """What held HBM at a peak."""

    name: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class Hbm:
    """HBM of the rank that used most."""

    rank: int
    capacity_bytes: int
    peak_bytes: int
    peak_step: int | None
    """The step in which the peak was reached; None where no step has ended."""
    holders: tuple[Holder, ...]
    """By falling bytes, at the peak of that step; what the run did not name is :data:`OTHER`."""
    times_ns: np.ndarray
    allocated: np.ndarray
    """[records] bytes in use at ``times_ns``."""
    peaks: dict[int, int]
    """Each rank's highest peak in bytes."""


def hbm_of(traces: Sequence[RankTrace]) -> Hbm:
    """The HBM of the rank whose peak over all steps, counted or not, is the highest."""
    peaks = {t.rank: _peak(t) for t in traces}
    trace = max(traces, key=lambda t: peaks[t.rank])
    times, allocated = hbm_series(trace)
    steps = trace.of(Kind.STEP)
    peak_step = int(steps["a"][steps["allocated"].argmax()]) if len(steps) else None
    holders: dict[str, int] = {}
    memory = trace.of(Kind.MEMORY)
    for record in memory[memory["a"] == peak_step] if peak_step is not None else ():
        name = trace.names.get(int(record["name"]), f"#{record['name']}")
        holders[name] = holders.get(name, 0) + int(record["b"])
    other = int(steps["allocated"].max()) - sum(holders.values()) if holders else 0
    if other > 0:
        holders[OTHER] = holders.get(OTHER, 0) + other
    return Hbm(
        rank=trace.rank,
        capacity_bytes=int(trace.header["hbm_bytes"]),
        peak_bytes=peaks[trace.rank],
        peak_step=peak_step,
        holders=tuple(
            Holder(n, b) for n, b in sorted(holders.items(), key=lambda item: -item[1]) if b
        ),
        times_ns=times,
        allocated=allocated,
        peaks=peaks,
    )


def hbm_series(trace: RankTrace) -> tuple[np.ndarray, np.ndarray]:
    """(times in ns, bytes in use) of a rank, sorted by time, one pair where the bytes change.

    Operators tell, by when they begin; the other records that go with the program have no ``allocated``.
    """
    records = trace.of(Kind.KERNEL)
    order = np.argsort(records["start_ns"], kind="stable")
    times, allocated = records["start_ns"][order], records["allocated"][order].astype(np.int64)
    changed = np.diff(allocated, prepend=-1) != 0
    return times[changed], allocated[changed]


def _peak(trace: RankTrace) -> int:
    return int(trace.of(Kind.KERNEL, Kind.STEP)["allocated"].max(initial=0))
