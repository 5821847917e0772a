"""What travels between the test process and its ranks: plain data, pickled."""

from __future__ import annotations

import copyreg
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["PHASES", "Place", "Record", "SessionSpec", "TestFailed"]

PHASES = ("setup", "call", "teardown")


@dataclass(frozen=True)
class SessionSpec:
    """The pytest session of the test process, to be made once more where ranks are forked from."""

    args: list[str]
    options: dict[str, Any]
    workerinput: dict[str, Any] | None
    """pytest-xdist's, in its workers."""


@dataclass
class Record:
    """How one rank fared with a test."""

    rank: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    """pytest's reports of its phases, serialised."""
    when: str | None = None
    """The first phase that did not pass."""
    time_ns: int = 0
    """When that ended, by the monotonic clock."""
    error: BaseException | None = None
    """What it raised, where that can be pickled."""
    warnings: list[tuple[warnings.WarningMessage, str, str, tuple[str, int, str] | None]] = field(
        default_factory=list
    )
    """Arguments of pytest_warning_recorded."""
    passed: dict[tuple[str, int], str] = field(default_factory=dict)
    """Assertions that held, by file and line, where the ini option enable_assertion_pass_hook is on."""


class TestFailed(Exception):
    """How a rank tells its launch that its test has failed, so that the others are not waited for in vain."""

    __test__ = False

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


@dataclass(frozen=True)
class Place:
    """Where a test runs that is not part of its options."""

    folder: Path
    """The test's own temporary directory, the same for all ranks."""
    capture: str
    """pytest's --capture."""
    pdb_rank: int | None


def _pickle_outcome(outcome: Any) -> tuple:
    kind = "skip" if isinstance(outcome, pytest.skip.Exception) else "fail"
    return _outcome, (kind, outcome.msg, outcome.pytrace)


def _outcome(kind: str, message: str | None, pytrace: bool) -> BaseException:
    return getattr(pytest, kind).Exception(message, pytrace)


# pytest gives these a module in which they are not, so that tracebacks read well; pickle needs to be told.
for _kind in (pytest.skip.Exception, pytest.fail.Exception):
    copyreg.pickle(_kind, _pickle_outcome)
