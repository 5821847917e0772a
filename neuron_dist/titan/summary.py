"""The few lines that end a run."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Recorder", "summary"]


@dataclass
class Recorder:
    """A TorchTitan metrics logger that keeps what the summary needs; add it to the trainer's loggers."""

    losses: dict[int, float] = field(default_factory=dict)
    """Step -> loss, of the steps that were logged."""
    validation_losses: dict[int, float] = field(default_factory=dict)
    """Step -> loss on the validation data after it."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Step -> seconds a step since the step logged before."""
    peak_bytes: int = 0

    def log(self, metrics: dict[str, Any], step: int) -> None:
        loss = metrics.get("validation_metrics/loss")
        if loss is not None:
            self.validation_losses[step] = float(loss)
        else:
            self.losses[step] = float(metrics["loss_metrics/global_avg_loss"])
            self.seconds[step] = float(metrics["time_metrics/end_to_end(s)"])
        memory = "memory/max_reserved(GiB)" if loss is None else "validation_metrics/memory/max_reserved(GiB)"
        self.saw_memory(int(float(metrics[memory]) * 2**30))

    def saw_memory(self, peak_bytes: int) -> None:
        self.peak_bytes = max(self.peak_bytes, peak_bytes)

    def close(self) -> None:
        """Nothing to close."""

    def attach(self, metrics_processor: Any) -> None:
        """Listens beside the loggers that ``metrics_processor`` has."""
        from torchtitan.components.metrics import LoggerContainer

        loggers = LoggerContainer()
        loggers.add_logger(metrics_processor.logger)
        loggers.add_logger(self)  # type: ignore[arg-type]
        metrics_processor.logger = loggers


def summary(
    recipe: str,
    layout: str,
    where: str,
    recorders: list[Recorder],
    metrics_rank: int,
    memory: str,
    logs: Path,
) -> str:
    """The summary of a run from the recorders of all ranks, in rank order."""
    seen = recorders[metrics_rank]
    lines = [
        (
            "recipe",
            f"{recipe}, {len(recorders)} rank{'s' * (len(recorders) > 1)}: {layout}; {where}",
        )
    ]
    if seen.losses:
        first, last = min(seen.losses), max(seen.losses)
        lines.append(("steps", f"{first} to {last}" if first != last else str(first)))
        lines.append(("loss", f"{seen.losses[first]:.5f} -> {seen.losses[last]:.5f}"))
        # The first step pays for warming up, so it counts only where it is alone.
        times = [s for step, s in seen.seconds.items() if step != first] or list(
            seen.seconds.values()
        )
        lines.append(("time", f"{statistics.median(times):.3f} s a step (median)"))
    else:
        lines.append(("steps", "none"))
    if seen.validation_losses:
        last = max(seen.validation_losses)
        lines.append(("valid", f"loss {seen.validation_losses[last]:.5f} after step {last}"))
    peaks = [r.peak_bytes for r in recorders]
    worst = max(range(len(peaks)), key=peaks.__getitem__)
    lines.append(("memory", f"{peaks[worst] / 2**30:.2f} GiB {memory}, peak of rank {worst}"))
    lines.append(("logs", f"{logs}/rank_*.log"))
    return "\n".join(["", *(f"  {name:<8}{text}" for name, text in lines), ""])
