"""A rank's trace with the times of a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neuron_dist.simulation.intervals import clip, split, union
from neuron_dist.simulation.rank_clock import RankClock
from neuron_dist.simulation.trace import Kind, RankTrace, Text, TraceWriter

__all__ = ["Note", "retimed", "write"]

COMPUTE = (Kind.KERNEL,)
COMMUNICATION = (Kind.COLLECTIVE, Kind.MESSAGE)


class Note(NamedTuple):
    """A COLLECTIVE or MESSAGE record's index in the trace, times and algorithm ('': as it is)."""

    at: int
    start_ns: int
    end_ns: int
    algorithm: str


def retimed(
    trace: RankTrace,
    clock: RankClock,
    notes: Sequence[Note],
    times_ns: np.ndarray,
    known: np.ndarray,
    header: Mapping[str, Any],
) -> RankTrace:
    """``trace`` at new times, without the records that the replay did not reach.

    A STEP's parts are those of the new times, communication that ends after the step included. MEMORY stays.
    """
    old, names = trace.records, dict(trace.names)
    new, keep = old.copy(), old["kind"] == Kind.MEMORY
    index, time_ns, reached = clock.points.times(times_ns, known)
    keep[index] = reached
    instant = (old["end_ns"][index] == old["start_ns"][index]) & (
        old["end_ns"][index] > 0
    )  # else it has no end
    new["start_ns"][index] = time_ns
    new["end_ns"][index] = np.where(instant, time_ns, old["end_ns"][index])
    kernels, starts_ns, ends_ns, reached = clock.kernel_times(times_ns, known)
    new["start_ns"][kernels], new["end_ns"][kernels], keep[kernels] = starts_ns, ends_ns, reached
    numbers = {name: number for number, name in names.items()}
    for at, start_ns, end_ns, algorithm in notes:
        keep[at] = True
        new["start_ns"][at], new["end_ns"][at] = start_ns, end_ns
        if algorithm and names.get(int(old["name2"][at])) != algorithm:
            if algorithm not in numbers:
                numbers[algorithm] = max(names, default=-1) + 1
                names[numbers[algorithm]] = algorithm
            new["name2"][at] = numbers[algorithm]
    _steps(new, keep)
    return replace(trace, records=new[keep], names=names, header={**trace.header, **header})


def _steps(table: np.ndarray, keep: np.ndarray) -> None:
    """Begins, ends and parts of the STEP records, whose new ends stand in ``start_ns``."""
    steps = np.flatnonzero((table["kind"] == Kind.STEP) & keep)
    compute, communication = (
        union(part["start_ns"], part["end_ns"])
        for part in (
            table[np.isin(table["kind"], kinds) & keep] for kinds in (COMPUTE, COMMUNICATION)
        )
    )
    start_ns = 0
    for step in steps.tolist():
        end_ns = int(table["start_ns"][step])
        near = [_near(intervals, start_ns, end_ns) for intervals in (compute, communication)]
        parts = split(near[0], near[1], start_ns, end_ns)
        table["start_ns"][step], table["end_ns"][step] = start_ns, end_ns
        table["b"][step], table["c"][step], table["d"][step] = parts[:3]
        start_ns = end_ns


def _near(intervals: np.ndarray, start_ns: int, end_ns: int) -> np.ndarray:
    """The part within a step of sorted intervals, found without looking at those of other steps."""
    first = np.searchsorted(intervals[:, 1], start_ns, "right")
    last = np.searchsorted(intervals[:, 0], end_ns, "left")
    return clip(intervals[first:last], start_ns, end_ns)


def write(trace: RankTrace, folder: str | Path) -> Path:
    """Writes a trace as a file that :func:`neuron_dist.simulation.trace.read` reads."""
    with TraceWriter(folder, trace.header) as writer:
        for number, name in trace.names.items():
            writer.text(Text.NAME, name, name=number)
        for number, group in trace.groups.items():
            made = {
                "id": group.id,
                "name": group.name,
                "desc": group.desc,
                "ranks": list(group.ranks),
            }
            writer.text(Text.GROUP, json.dumps(made), group=number)
        for number, name in trace.streams.items():
            writer.text(Text.STREAM, name, stream=number)
        for site in trace.sites:
            writer.text(Text.SITE, json.dumps(site))
    with writer.path.open("ab") as file:
        file.write(np.ascontiguousarray(trace.records).tobytes())
    return writer.path
