"""Rank 0 speaks on the terminal, every rank writes its own log file, and errors of any rank are seen.

Plain torchrun shows the output of all ranks; TorchTitan leaves it to a launch flag to show only one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from neuron_dist import reports

__all__ = ["log_to"]

_STEP = re.compile(r"^(\x1b\[\d+m)?(?P<validate>validate )?step: +\d")
_NOISE = re.compile(
    "|".join(
        (
            # Rank 0 does not know the loss of a pipeline, but the rank that does is shown.
            "Pipeline Parallel loss is not visible",
            # Normal for a corpus smaller than the run.
            "is being re-looped",
            # Said of TorchTitan's own defaults.
            "initial_load_model_only=True has no effect",
            "model.safetensors.index.json not found",
            "'set_vital' is deprecated",
            # DTensor's generator on a CPU: shards start from the same numbers; docs/recipes.md tells.
            "DTensor (random operators|manual_seed\\(\\)) may not have complete support on cpu",
            # A hint about latency.
            "sequential all_reduce operations will be performed",
        )
    )
)
"""Warnings that tell a user nothing to act on; the log files have them."""


class _Terminal(logging.Filter):
    """What of a rank's records the terminal shows, and what is added to its step lines."""

    def __init__(self, rank: int, metrics_rank: int, addition: Callable[[], str]) -> None:
        super().__init__()
        self.rank = rank
        self.metrics_rank = metrics_rank
        self.addition = addition

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if reports.progress_is_shown() and record.levelno < logging.WARNING:
            return False
        if step := _STEP.match(message):
            addition = "" if step["validate"] else self.addition()
            if self.rank == self.metrics_rank and not message.endswith(addition):
                record.msg, record.args = message + addition, ()
            return self.rank == self.metrics_rank
        if _NOISE.search(message) and record.levelno <= logging.WARNING:
            return False
        return self.rank == 0 or record.levelno >= logging.ERROR


def log_to(
    folder: Path, rank: int, metrics_rank: int, addition: Callable[[], str] = lambda: ""
) -> Path:
    """Adds ``folder/rank_<rank>.log`` to the root logger and quietens its other handlers; call after TorchTitan's own.

    Returns the file. Python's warnings go where the log goes. ``addition`` is asked for what to add to a step line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    root = logging.getLogger()
    # torch's own loggers have handlers of their own, and do not pass records on.
    loggers = [
        root,
        *(v for k, v in root.manager.loggerDict.items() if k.partition(".")[0] == "torch"),
    ]
    owners = [owner for owner in loggers if isinstance(owner, logging.Logger) and owner.handlers]
    for handler in [h for owner in owners for h in owner.handlers]:
        handler.addFilter(_Terminal(rank, metrics_rank, addition))
    path = folder / f"rank_{rank}.log"
    to_file = logging.FileHandler(path, mode="w", encoding="utf-8")
    to_file.setLevel(logging.INFO)
    to_file.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for owner in owners:
        owner.addHandler(to_file)
    logging.captureWarnings(True)
    return path


class _Plain(logging.Formatter):
    """Without the terminal's colours."""

    def format(self, record: logging.LogRecord) -> str:
        return re.sub(r"\x1b\[\d+m", "", super().format(record))
