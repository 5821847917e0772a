"""How far a run is: told to the launcher at each step, and beside TorchTitan's figures in its step lines."""

from __future__ import annotations

import statistics
import time
from collections import deque
from datetime import timedelta

from neuron_dist import _C, reports
from neuron_dist.simulation import units
from neuron_dist.titan.summary import Recorder

__all__ = ["Progress"]

_RECENT = 20
"""Steps whose median says how long the next ones will take."""


class Progress:
    """Of the rank that knows the loss. ``steps`` is the number of the last step."""

    def __init__(self, rank: int, steps: int, recorder: Recorder, device: str) -> None:
        self.rank = rank
        self.steps = steps
        self.recorder = recorder
        self.device = device
        self.step = 0
        self.simulated_ns: int | None = None
        """Of the last step."""
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._ended_s: float | None = None
        self._ended_ns = 0

    def step_ended(self, step: int) -> None:
        """To be called after each step, in simulated time too."""
        now_s, now_ns = time.monotonic(), self._now_ns()
        if self._ended_s is not None:  # the first step's beginning is not known
            self._seconds.append(now_s - self._ended_s)
            self.simulated_ns = now_ns - self._ended_ns if now_ns else None
        self.step, self._ended_s, self._ended_ns = step, now_s, now_ns
        reports.send(
            "step",
            self.rank,
            step=step,
            steps=self.steps,
            loss=self.recorder.losses.get(step),
            seconds=self._seconds[-1] if self._seconds else None,
            left_s=self.left_s(),
            simulated_ns=self.simulated_ns,
        )

    def left_s(self) -> float | None:
        """Seconds from now until the last step has ended, by the median of the recent ones; None before the second."""
        if not self._seconds or self._ended_s is None:
            return None
        last_s = self._ended_s + statistics.median(self._seconds) * (self.steps - self.step)
        return max(0.0, last_s - time.monotonic())

    def line(self) -> str:
        """``  simulated: 1.92 ms  ETA: 0:00:13``, as known before the step that is being logged has ended."""
        parts = []
        if self.simulated_ns is not None:
            parts.append(f"simulated: {units.time(self.simulated_ns)}")
        if (left := self.left_s()) is not None:
            parts.append(f"ETA: {timedelta(seconds=round(left))}")
        return "".join(f"  {part}" for part in parts)

    def _now_ns(self) -> int:
        """The latest of this rank's clocks; 0 where nothing is simulated."""
        if self.device != "neuron" or not _C._simulation():
            return 0
        return max(_C._host_ns(), _C._device_ns(_C._current_device()))
