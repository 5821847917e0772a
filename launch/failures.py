"""Why a run failed, told once: the rank that failed first with its traceback, the others in one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collectives.spelling import ranks
from neuron_dist.forking import signal_name

__all__ = ["Failure", "Failures"]


@dataclass
class Failure:
    """How one rank failed."""

    rank: int
    pid: int
    time_ns: int
    """CLOCK_MONOTONIC: when it raised, else when it ended."""
    how: str
    """The exception's last line, or how the process ended."""
    traceback: str = ""
    follows: bool = False
    """Whether it tells of another rank's end, or was ended by the launcher."""


class Failures:
    """What is known of the ranks that failed, in one attempt of a run."""

    def __init__(self) -> None:
        self._reports: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, Failure] = {}

    def reported(self, report: dict[str, Any]) -> None:
        """Takes in a report of kind ``failed``."""
        self._reports.setdefault(report["rank"], report)

    def ended(self, rank: int, pid: int, exit_code: int, time_ns: int, asked_to: bool) -> None:
        """Takes in the end of a rank, which the launcher may have asked for."""
        if exit_code != 0:
            how = _how(exit_code)
            self._ended[rank] = Failure(rank, pid, time_ns, how, follows=asked_to)

    def __bool__(self) -> bool:
        return bool(self._ended)

    def clear(self) -> None:
        """Begins another attempt."""
        self._reports.clear()
        self._ended.clear()

    def in_order(self) -> list[Failure]:
        """The first failure first: by time, those that tell of others' ends after those that do not."""
        failures = []
        for rank, failure in self._ended.items():
            if (report := self._reports.get(rank)) is not None:
                failure = Failure(
                    rank, failure.pid, report["time_ns"], report["error"], report["traceback"], report["of_a_peer"]
                )
            failures.append(failure)
        return sorted(failures, key=lambda failure: (failure.follows, failure.time_ns))

    def text(self) -> str:
        """The first failure with its traceback, then the others."""
        first, *others = self.in_order()
        head = f"rank {first.rank} (pid {first.pid}) failed first:"
        lines = [f"{head}\n{first.traceback.rstrip()}" if first.traceback else f"{head} {first.how}"]
        if others:
            plural = "s" * (len(others) > 1)
            lines.append(f"{len(others)} other rank{plural} failed after it: {_summary(others)}")
        return "\n".join(lines)


def _summary(failures: Iterable[Failure]) -> str:
    """``ranks 0-2, 5: how; rank 4: how``, the most frequent first."""
    by_how: dict[str, list[int]] = {}
    for failure in failures:
        by_how.setdefault(_shortened(failure.how), []).append(failure.rank)
    groups = sorted(by_how.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{ranks(those)} {how}" for how, those in groups[:_MOST]) + (
        f"; and {len(groups) - _MOST} more kinds" if len(groups) > _MOST else ""
    )


_MOST = 3
"""Kinds of failures that the line of the others names."""


def _shortened(how: str, most: int = 200) -> str:
    how = how.split("\n", 1)[0]
    return how if len(how) <= most else how[: most - 3] + "..."


def _how(exit_code: int) -> str:
    return f"ended by {signal_name(-exit_code)}" if exit_code < 0 else f"ended with exit status {exit_code}"
