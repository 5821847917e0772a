"""How the parts of benchmarks/device.py take time."""

from __future__ import annotations

import statistics
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DEVICES = ("cpu", "neuron")
ROUND_S = 0.0005
"""Time a statement is given in one turn."""


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Side:
    """One of those that take turns."""

    names: dict[str, Any]
    """Global names of the statement."""
    before: Callable[[], None] = nothing
    """Called before each turn."""


@dataclass(frozen=True)
class Timing:
    clock: Callable[[], float]
    """Seconds: of the process, or of the wall."""

    def alternate(self, statement: str, sides: Mapping[str, Side], rounds: int) -> dict[str, float]:
        """Median microseconds of ``statement`` for each side, over ``rounds`` turns."""
        timers = {
            name: timeit.Timer(statement, timer=self.clock, globals=side.names)
            for name, side in sides.items()
        }
        once = 0.0
        for name, timer in timers.items():
            sides[name].before()
            timer.timeit(5)
            once = max(once, timer.timeit(5) / 5)
        calls = int(min(max(ROUND_S / max(once, 1e-7), 3), 10_000))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds):
            for name in list(sides) if turn % 2 == 0 else reversed(list(sides)):
                sides[name].before()
                times[name].append(timers[name].timeit(calls) / calls * 1e6)
        return {name: statistics.median(t) for name, t in times.items()}
