"""The live line of a training run on a terminal; what ranks print goes above it."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

from neuron_dist.simulation import units

__all__ = ["LiveLine"]


class LiveLine:
    """``12/30 |████      | loss 5.61234  0.52 s a step (simulated 1.92 ms)  ETA 0:00:09``, on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._loss: float | None = None

    def start(self) -> None:
        """Shows the line. tqdm starts a thread, so ranks must not be forked from this process any more."""
        from tqdm import tqdm

        known = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # some pseudo-terminals say 0
        self._bar = tqdm(
            file=sys.stderr,
            **({"dynamic_ncols": True} if known else {"ncols": 80, "nrows": 24}),
            bar_format="{n_fmt}/{total_fmt} |{bar:10}| {postfix[0]}",
            postfix=["starting"],
        )

    def step(self, report: dict[str, Any]) -> None:
        """Takes in a report of kind ``step``."""
        self._bar.n, self._bar.total = report["step"], report["steps"]
        self._loss = self._loss if report["loss"] is None else report["loss"]
        self._bar.postfix[0] = step_text(report, self._loss)
        self._bar.refresh()

    def write(self, text: str) -> None:
        """Prints lines above."""
        self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leaves the line as it is."""
        if self._bar is not None:
            self._bar.close()


def step_text(report: dict[str, Any], loss: float | None) -> str:
    """What a report of kind ``step`` says, with the loss last known."""
    parts = [] if loss is None else [f"loss {loss:.5f}"]
    if report["seconds"] is not None:
        simulated = report["simulated_ns"]
        parts.append(
            f"{report['seconds']:.2f} s a step"
            + (f" (simulated {units.time(simulated)})" if simulated is not None else "")
        )
        parts.append(f"ETA {timedelta(seconds=round(report['left_s']))}")
    return "  ".join(parts)
