"""What became of a test in all its ranks, as pytest's reports."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntry,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

from collectives import spelling
from launch.pytest_plugin.records import PHASES, Record, TestFailed
from neuron_dist.testing.errors import RankError
from neuron_dist.testing.ranks import Launch

if TYPE_CHECKING:
    from launch.pytest_plugin.item import RanksFunction

__all__ = ["Outcome"]

STYLE: Literal["long"] = "long"


class Outcome:
    """How the ranks of one test fared, from what its launch gave for each of them."""

    def __init__(self, item: RanksFunction, results: list[Any], launch: Launch) -> None:
        self.item, self.config = item, item.config
        self.world_size = len(results)
        self.records: dict[int, Record] = {}
        self.reports: dict[int, dict[str, pytest.TestReport]] = {}
        """Of each rank that got through the test, by phase."""
        self.lost: dict[int, Exception] = {}
        """Ranks that did not: they died, hung, or could not begin."""
        self.times_ns = {rank: time_ns for rank, (time_ns, _) in launch.failures.items()}
        self.printed: dict[int, tuple[str, str]] = {}
        for rank, result in enumerate(results):
            record = result
            if isinstance(result, RankError) and isinstance(result.__cause__, TestFailed):
                record = result.__cause__.record
            elif isinstance(result, Exception):
                if isinstance(result.__cause__, pytest.exit.Exception):
                    raise result.__cause__
                self.lost[rank] = result
                output = launch.output(rank)
                self.printed[rank] = output.stdout, output.stderr
                continue
            self.records[rank] = record
            self.times_ns[rank] = record.time_ns
            self.reports[rank] = {}
            for serialised in record.reports:
                report = self.config.hook.pytest_report_from_serializable(
                    config=self.config, data=serialised
                )
                self.reports[rank][report.when] = report
        self.failed = [*self.lost, *(r for r in self.records if self._failure(r))]
        self.failed.sort(key=lambda rank: self.times_ns[rank])
        self.when = self._phase()

    def _failure(self, rank: int) -> pytest.TestReport | None:
        when = self.records[rank].when
        report = self.reports[rank].get(when or "")
        return report if report is not None and report.failed else None

    def _phase(self) -> str | None:
        """The phase of this test that does not pass, or None: the earliest in which a rank failed, or all skipped."""
        if self.failed:
            phases = ["call" if rank in self.lost else self.records[rank].when for rank in self.failed]
            return min((p for p in phases if p), key=PHASES.index)
        if all(record.when for record in self.records.values()):
            return self.records[0].when
        return None

    def raise_from(self, phase: str) -> None:
        """Raises what the first rank raised, if this is the phase that does not pass."""
        __tracebackhide__ = True
        if phase != self.when:
            return
        first = self.failed[0] if self.failed else 0
        if first in self.lost:
            raise self.lost[first]
        error = self.records[first].error
        if error is None:  # it could not be pickled
            error = RankError(f"{spelling.ranks([first])} of {self.world_size} failed", first)
        raise error

    def outputs(self) -> Iterator[tuple[str, str, str]]:
        """Phase, stream and text of what ranks have printed, equal texts once, with the ranks in the phase's name."""
        texts: dict[tuple[str, str], dict[str, list[int]]] = {}  # by phase and stream
        for rank in range(self.world_size):
            sections: list[tuple[str, str]] = []
            if rank in self.printed:
                names = ("Captured stdout call", "Captured stderr call")
                sections = list(zip(names, self.printed[rank], strict=True))
            else:
                for phase in reversed(PHASES):
                    if phase in self.reports[rank]:  # a report has the sections of the phases before
                        sections = self.reports[rank][phase].sections
                        break
            for name, text in sections:
                match = re.fullmatch(r"Captured (\w+) (\w+)", name)
                if match and text:
                    texts.setdefault((match[2], match[1]), {}).setdefault(text, []).append(rank)
        for (when, key), groups in sorted(texts.items(), key=lambda pair: PHASES.index(pair[0][0])):
            for text, ranks in groups.items():
                yield f"{when} ({spelling.ranks(ranks)})", key, text

    def tell_warnings(self) -> None:
        """Warnings of the ranks, each once."""
        told: set[Hashable] = set()
        for record in self.records.values():
            for message, when, nodeid, location in record.warnings:
                key = str(message.message), message.filename, message.lineno
                if key not in told:
                    told.add(key)
                    self.config.hook.pytest_warning_recorded.call_historic(
                        kwargs={
                            "warning_message": message,
                            "when": when,
                            "nodeid": nodeid,
                            "location": location,
                        }
                    )

    def amend(self, report: pytest.TestReport) -> None:
        """Makes pytest's report of one phase in this process one of all ranks."""
        durations = {p: max((r[p].duration for r in self.reports.values() if p in r), default=0.0) for p in PHASES}
        if report.when == "setup":  # that was all of it
            report.duration = max(0.0, report.duration - durations["call"] - durations["teardown"])
        else:
            report.duration = durations[report.when or "call"]
        for reports in self.reports.values():
            of_rank = reports.get(report.when or "")
            for pair in of_rank.user_properties if of_rank else []:
                if pair not in report.user_properties:
                    report.user_properties.append(pair)
        if report.when != self.when or isinstance(report.longrepr, str):
            return
        if self.failed:
            report.longrepr = self._text()
        elif report.when in self.reports[0]:
            report.longrepr = self.reports[0][report.when].longrepr

    def _text(self) -> ExceptionChainRepr:
        """Of all ranks that failed: the first in time first, ranks with equal messages together."""
        groups: dict[Hashable, list[int]] = {}
        for rank in self.failed:
            groups.setdefault(self._message(rank), []).append(rank)
        blocks: list[tuple[str, list[tuple[ReprTraceback, ReprFileLocation | None]]]] = []
        place = None
        for ranks in groups.values():
            first = ranks[0]
            report = None if first in self.lost else self._failure(first)
            longrepr = report.longrepr if report else None
            crash = getattr(longrepr, "reprcrash", None)
            here = (crash.path, crash.lineno) if crash else None
            phase = "" if report is None or report.when == self.when else f" in {report.when}"
            if here and here == place:
                blocks.append((f"{spelling.ranks(ranks)}{phase}, at the same line", [(_only_error(longrepr), crash)]))
            else:
                parts = self._parts(first, longrepr)
                if blocks and self.config.option.tbstyle == "auto":  # most often a consequence of the first
                    parts = [(_without_source(traceback), crash) for traceback, crash in parts]
                blocks.append((f"{spelling.ranks(ranks)}{phase}", parts))
            place = place or here
        held = self._held(place)
        blocks += [(f"{spelling.ranks(ranks)} passed that line", [(_plain(text), None)]) for text, ranks in held.items()]
        chain: list[Any] = [(_plain(""), None, f"{self._summary()}\n\n{_heading(blocks[0][0])}")]
        for index, (_, parts) in enumerate(blocks):
            after = "\n" + _heading(blocks[index + 1][0]) if index + 1 < len(blocks) else None
            chain += [(traceback, crash, None) for traceback, crash in parts[:-1]]
            chain.append((*parts[-1], after))
        made = ExceptionChainRepr(chain)
        made.reprcrash = self._crash()
        return made

    def _summary(self) -> str:
        failed = f"{spelling.ranks(self.failed)} of {self.world_size} failed"
        if len(self.failed) > 1:
            failed += f", rank {self.failed[0]} first"
        passed = [rank for rank in range(self.world_size) if rank not in self.failed]
        return f"{failed}; {spelling.ranks(passed)} passed" if passed else failed

    def _message(self, rank: int) -> Hashable:
        if rank in self.lost:
            return type(self.lost[rank]), _said(self.lost[rank])
        report = self._failure(rank)
        assert report is not None
        crash = getattr(report.longrepr, "reprcrash", None)
        return (crash.path, crash.lineno, crash.message) if crash else report.longreprtext

    def _parts(self, rank: int, longrepr: Any) -> list[tuple[ReprTraceback, ReprFileLocation | None]]:
        """One rank's failure as pytest shows it, in the parts of its chain of exceptions."""
        if rank in self.lost:
            return [(_plain(_said(self.lost[rank])), None)]
        if isinstance(longrepr, ExceptionChainRepr):
            parts = []
            for traceback, crash, description in longrepr.chain:
                parts.append((traceback, crash))
                if description:
                    parts.append((_plain(description), None))
            return parts
        if hasattr(longrepr, "reprtraceback"):
            return [(longrepr.reprtraceback, longrepr.reprcrash)]
        return [(_plain(str(longrepr)), None)]

    def _held(self, place: tuple[str, int] | None) -> dict[str, list[int]]:
        """What the assertion that failed said in ranks where it held, if pytest was told to keep that."""
        held: dict[str, list[int]] = {}
        for rank, record in self.records.items():
            if place in record.passed and rank not in self.failed:
                held.setdefault(f"    assert {record.passed[place]}", []).append(rank)
        return held

    def _crash(self) -> ReprFileLocation:
        """For the summary: the line and the message of the rank that failed first."""
        first = self.failed[0]
        report = None if first in self.lost else self._failure(first)
        crash = getattr(report.longrepr, "reprcrash", None) if report else None
        if crash:
            return ReprFileLocation(crash.path, crash.lineno, f"rank {first}: {crash.message}")
        path, line, _ = self.item.reportinfo()
        text = _said(self.lost[first]) if first in self.lost else str(report.longrepr if report else "")
        return ReprFileLocation(str(path), (line or 0) + 1, text.strip().splitlines()[0])


def _said(error: Exception) -> str:
    """Its message without the rank's output, which has sections of its own."""
    return error.message if isinstance(error, RankError) else str(error)


def _heading(text: str) -> str:
    return f"----- {text} -----"


def _plain(text: str) -> ReprTraceback:
    entries = [ReprEntryNative([f"{text}\n"])] if text else []
    return ReprTraceback(entries, None, "native")


def _without_source(traceback: ReprTraceback) -> ReprTraceback:
    """Of each frame of a traceback the line that was executed, and what was raised."""
    entries = [
        ReprEntry([li for li in e.lines if li.startswith((">", "E "))], None, None, e.reprfileloc, STYLE)
        if isinstance(e, ReprEntry) and e.style == STYLE
        else e
        for e in traceback.reprentries
    ]
    return ReprTraceback(entries, traceback.extraline, traceback.style)


def _only_error(longrepr: Any) -> ReprTraceback:
    """The lines of a traceback that say what was raised, without the source."""
    entry = longrepr.reprtraceback.reprentries[-1]
    lines = [line for line in entry.lines if line.startswith("E ")]
    if not lines:
        return _plain(f"E   {longrepr.reprcrash.message}")
    return ReprTraceback([ReprEntry(lines, None, None, entry.reprfileloc, STYLE)], None, STYLE)
