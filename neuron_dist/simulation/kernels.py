"""The operators that took longest, and what bounds each: flops, HBM, the host's link or the launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuron_dist.simulation.roofline import COMPUTE, Roofline, tensor_kind
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["KernelRow", "kernel_rows"]

BOUNDS = ("flops", "HBM", "host link", "launch")


@dataclass(frozen=True)
class KernelRow:
    """One operator at one dtype, over all ranks and counted steps together."""

    name: str
    dtype: str
    count: int
    time_ns: int
    flops: int
    nbytes: int
    bound: str
    """What most of its time is spent on by the roofline, one of :data:`BOUNDS`."""


def kernel_rows(
    traces: Sequence[RankTrace],
    counted: Callable[[RankTrace, np.ndarray], np.ndarray],
    roofline: Roofline,
) -> list[KernelRow]:
    """By falling time. ``counted`` tells which records of a rank are in a counted step."""
    sums: dict[tuple[str, str], np.ndarray] = {}
    for trace in traces:
        kernels = trace.of(Kind.KERNEL)
        kernels = kernels[counted(trace, kernels)]
        keys = kernels["name"].astype(np.int64) << 8 | kernels["dtype"]
        values, inverse = np.unique(keys, return_inverse=True)
        moves = kernels["flag"]
        peaks = np.array(
            [roofline.tensor_flops[tensor_kind(trace.dtype_name(int(v) & 255))] for v in values]
        )
        by_flops = kernels["a"] * 1e9 / peaks[inverse] if len(values) else np.zeros(0)
        by_bytes = (
            kernels["b"] * 1e9 / np.where(moves == COMPUTE, roofline.hbm_Bps, roofline.host_Bps)
        )
        on_flops = by_flops >= by_bytes
        columns = (
            np.ones(len(kernels)),
            kernels["end_ns"] - kernels["start_ns"],
            kernels["a"],
            kernels["b"],
            by_flops * on_flops,
            by_bytes * (~on_flops & (moves == COMPUTE)),
            by_bytes * (~on_flops & (moves != COMPUTE)),
            np.full(len(kernels), roofline.launch_ns),
        )
        table = np.stack([np.bincount(inverse, c, len(values)) for c in columns], axis=1)
        for value, row in zip(values, table, strict=True):
            key = (
                trace.names.get(int(value) >> 8, f"#{value >> 8}"),
                trace.dtype_name(int(value) & 255),
            )
            sums[key] = sums.get(key, np.zeros(len(columns))) + row
    rows = []
    for (name, dtype), row in sums.items():
        count, time_ns, flops, nbytes = (round(v) for v in row[:4])
        bound = BOUNDS[int(row[4:].argmax())]
        rows.append(KernelRow(name, dtype, count, time_ns, flops, nbytes, bound))
    return sorted(rows, key=lambda r: (-r.time_ns, r.name, r.dtype))
