"""The steps that all ranks have ended, and which records lie in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuron_dist.simulation.busy import Busy
from neuron_dist.simulation.figures import WHOLE_RUN, RankStep, RunFigures
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["in_step", "in_steps", "rank_steps", "windows_of"]


def rank_steps(
    traces: Sequence[RankTrace], busy: Sequence[Busy], notes: list[str]
) -> list[RankStep]:
    """The steps that all ranks have ended."""
    found: list[RankStep] = []
    for trace, intervals in zip(traces, busy, strict=True):
        for record in trace.of(Kind.STEP):
            start, end = int(record["start_ns"]), int(record["end_ns"])
            compute, exposed, overlapped, _ = intervals.split(start, end)
            found.append(
                RankStep(
                    trace.rank, int(record["a"]), start, end, compute, exposed, overlapped, int(record["e"]),
                    int(record["allocated"]),
                )
            )  # fmt: skip
    ended: dict[int, int] = {}
    for step in found:
        ended[step.step] = ended.get(step.step, 0) + 1
    partial = sorted(step for step, ranks in ended.items() if ranks < len(traces))
    if partial:
        notes.append(
            f"step{'s' * (len(partial) > 1)} {', '.join(map(str, partial[:5]))}{' and more' * (len(partial) > 5)} "
            "left out: not all ranks have ended it"
        )
    whole = [step for step in found if ended[step.step] == len(traces)]
    if whole:
        return whole
    notes.append("no step was marked that all ranks have ended; the whole run is taken as one")
    return [_whole(trace, intervals) for trace, intervals in zip(traces, busy, strict=True)]


def _whole(trace: RankTrace, busy: Busy) -> RankStep:
    ends = [int(i[-1, 1]) for i in (busy.compute, busy.communication) if len(i)]
    compute, exposed, overlapped, _ = busy.split(0, max(ends, default=0))
    flops = int(trace.of(Kind.KERNEL)["a"].sum())
    peak = int(trace.records["allocated"].max(initial=0))
    return RankStep(
        trace.rank, WHOLE_RUN, 0, max(ends, default=0), compute, exposed, overlapped, flops, peak
    )


def windows_of(figures: RunFigures) -> dict[int, np.ndarray]:
    """Rank -> [n, 2] (start, end) of its counted steps, sorted."""
    counted = set(figures.counted)
    spans: dict[int, list[tuple[int, int]]] = {r: [] for r in range(figures.world_size)}
    for step in figures.ranks:
        if step.step in counted:
            spans[step.rank].append((step.start_ns, step.end_ns))
    return {r: np.array(sorted(s), np.int64).reshape(-1, 2) for r, s in spans.items()}


def in_step(times: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Whether each time is in one of the windows."""
    if not len(windows):
        return np.zeros(len(times), bool)
    at = np.searchsorted(windows[:, 0], times, side="right") - 1
    return (at >= 0) & (times < windows[np.maximum(at, 0), 1])


def in_steps(rows: np.ndarray, windows: dict[int, np.ndarray]) -> np.ndarray:
    """Whether each operation began in a counted step of its rank."""
    inside = np.zeros(len(rows), bool)
    for rank, spans in windows.items():
        own = np.flatnonzero(rows["rank"] == rank)
        inside[own] = in_step(rows["start_ns"][own], spans)
    return inside
