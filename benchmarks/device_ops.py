"""The overhead of single operators: the statements of device_ops.yaml on neuron and on the CPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn import functional as F

from benchmarks.device_timing import DEVICES, Side, Timing


@dataclass(frozen=True)
class Row:
    """One statement; microseconds a run."""

    group: str
    statement: str
    cpu_us: float
    neuron_us: float

    @property
    def more_us(self) -> float:
        return self.neuron_us - self.cpu_us

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "more_us": self.more_us}


def statements() -> tuple[str, dict[str, list[str]]]:
    """The setup, and the statements of each group."""
    read = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    setup = read.pop("setup")
    return setup, {group: text.splitlines() for group, text in read.items()}


def names_on(device: str, setup: str) -> dict[str, Any]:
    """What the setup defines, on ``device``; the random numbers are the same on each."""
    names: dict[str, Any] = {"torch": torch, "F": F, "device": device}
    torch.manual_seed(0)
    with torch.device(device):
        exec(setup, names)
    return names


def measure(timing: Timing, rounds: int, match: str = "") -> list[Row]:
    """Rows of the statements that contain ``match``."""
    setup, groups = statements()
    sides = {device: Side(names_on(device, setup)) for device in DEVICES}
    rows = []
    for group, lines in groups.items():
        for line in lines:
            if match in line:
                us = timing.alternate(line, sides, rounds)
                rows.append(Row(group, line, us["cpu"], us["neuron"]))
    return rows


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` do not exceed."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
