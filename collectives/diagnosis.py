"""What is wrong with a schedule's final value: which contribution is lacking, repeated or another's."""

from __future__ import annotations

import numpy as np

from collectives.dataflow import Dataflow

__all__ = ["contributions", "describe"]


def contributions(flow: Dataflow, value: int) -> np.ndarray:
    """[ranks] how often each rank's contribution is in a value."""
    n = flow.schedule.ranks
    counts: dict[int, np.ndarray] = {}
    stack = [value]
    while stack:
        node = stack[-1]
        if node in counts:
            stack.pop()
        elif node < n:
            counts[node] = (np.arange(n) == node).astype(object)
        else:
            parts = int(flow.left[node - n]), int(flow.right[node - n])
            missing = [p for p in parts if p not in counts]
            if missing:
                stack += missing
            else:
                counts[node] = counts[parts[0]] + counts[parts[1]]
    return counts[value]


def describe(flow: Dataflow, at: int) -> str:
    """The fault of the ``at``-th required value, with its chunk, rank and contributions."""
    rank, chunk, value = flow.required_rank[at], flow.required_chunk[at], int(flow.final[at])
    where = f"{flow.schedule}: rank {rank} chunk {chunk}"
    if value < 0:
        return f"{where}: never arrives"
    counts = contributions(flow, value)
    if flow.required_leaf[at] >= 0:
        held = " + ".join(str(r) for r in np.flatnonzero(counts))
        return f"{where}: holds the contribution of rank {held}, expected that of rank {flow.required_leaf[at]}"
    lacking = np.flatnonzero(counts == 0).tolist()
    repeated = [f"{r} ({counts[r]} times)" for r in np.flatnonzero(counts > 1)]
    parts = [f"lacks the contribution of rank {_listed(lacking)}"] if lacking else []
    parts += [f"repeats that of rank {_listed(repeated)}"] if repeated else []
    return f"{where}: {' and '.join(parts)}"


def _listed(items: list) -> str:
    shown = ", ".join(str(i) for i in items[:8])
    return shown + (f" and {len(items) - 8} more" if len(items) > 8 else "")
