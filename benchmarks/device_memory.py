"""What it costs to allocate and free: the device's allocator beside the CPU's, and with memory history beside without."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.device_timing import Side, Timing
from neuron_dist import device as neuron

SIZES = {"256 B": 1 << 8, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}


def churn(device: str) -> Callable[[], None]:
    """Each call frees one of 200 tensors of 256 B to 1 MiB and makes another."""
    draw = random.Random(0)
    sizes = [draw.choice([1 << 8, 1 << 11, 1 << 14, 1 << 17, 1 << 20]) for _ in range(1000)]
    live = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes[:200]]
    calls = 0

    def exchange() -> None:
        nonlocal calls
        size = sizes[calls % len(sizes)]
        del live[calls * 7 % len(live)]
        live.append(torch.empty(size, dtype=torch.uint8, device=device))
        calls += 1

    return exchange


def measure(timing: Timing, rounds: int) -> dict[str, dict[str, float]]:
    """Median microseconds of each case: on the CPU, and on neuron with each kind of history."""
    record = neuron.memory._record_memory_history
    columns = {
        "cpu": ("cpu", partial(record, enabled=None)),
        "neuron": ("neuron", partial(record, enabled=None)),
        "history: state": ("neuron", partial(record, enabled="state", context=None)),
        "and stacks": ("neuron", partial(record, enabled="all", stacks="python", max_entries=1000)),
    }
    cases = {
        f"torch.empty of {name}": f"torch.empty({size}, dtype=torch.uint8, device=device)"
        for name, size in SIZES.items()
    } | {"one of 200 tensors exchanged": "exchange()"}
    rows = {}
    for name, statement in cases.items():
        sides = {}
        for column, (device, before) in columns.items():
            names = {"torch": torch, "device": device, "exchange": churn(device)}
            sides[column] = Side(names, before)
        rows[name] = timing.alternate(statement, sides, rounds)
    record(enabled=None)
    return rows
