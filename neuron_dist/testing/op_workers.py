"""Processes that run the checks of a suite: a check that kills or hangs its process costs only itself.

Each worker takes one operator x dtype at a time and announces every check before it runs it, so that the parent knows
what a lost worker was doing. The case is then resumed in a fresh worker, after the check that was lost.
"""

from __future__ import annotations

import hashlib
import multiprocessing as mp
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest import SkipTest

__all__ = ["Case", "Record", "cause_of", "run_cases", "stable_hash"]


@dataclass(frozen=True, order=True)
class Case:
    """What one line of the results is about. ``layout`` names the layout of the samples."""

    op: str
    dtype: str
    layout: str = "strided"


def stable_hash(case: Case) -> int:
    """0 to 99, the same on every machine: what belongs to a subset of some percent."""
    text = f"{case.op} {case.dtype} {case.layout}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % 100


@dataclass
class Record:
    """Outcome of one case. Counts are of checks, by variant."""

    op: str
    dtype: str
    layout: str
    passed: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    """Of the passed ones: the CPU raises an exception, and so did the device."""
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """The first few: sample (index), variant, reason."""
    seconds: float = 0.0

    KEEP = 24

    def add(self, sample: int, variant: str, reason: str | None, raised: bool) -> None:
        if reason is None:
            self.passed[variant] += 1
            self.raised[variant] += raised
            return
        self.failed[variant] += 1
        if len(self.failures) < self.KEEP:
            self.failures.append({"sample": sample, "variant": variant, "reason": reason[:2000]})

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Record:
        counts = {k: Counter(data[k]) for k in ("passed", "raised", "failed")}
        return Record(**{**data, **counts})


def cause_of(reason: str) -> str:
    """The reason without what differs between instances of one cause: numbers, names of values, further lines."""
    lines = [line for line in reason.splitlines() if line.strip()]
    first = lines[0] if lines else "(no text)"
    first = re.sub(r"0x[0-9a-f]+", "0x..", first)
    first = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", first)
    return re.sub(r"[\[(]N(, ?N)*,?[\])]", "(...)", first)[:240]


def _serve(pipe: Connection, name: str, device: str, most: int | None) -> None:
    """A worker: cases come in as (case, variants, position to begin at), outcomes go out."""
    import torch

    from neuron_dist.testing.op_checks import Check
    from neuron_dist.testing.suites import SUITES

    torch.set_num_threads(1)
    suite = SUITES[name]
    while True:
        case, variants, begin = pipe.recv()
        try:
            todo = suite.todo(case, variants, most)
        except (NotImplementedError, SkipTest):  # the database has no samples in this layout
            pipe.send(("done",))
            continue
        except Exception as error:
            pipe.send(("unusable", f"making samples: {type(error).__name__}: {error}"))
            continue
        for position, (i, variant, sample) in enumerate(todo):
            if position < begin:
                continue
            pipe.send(("begin", position, i, variant))
            try:
                outcomes = list(suite.run(case, (i, variant, sample), device))
            except Exception as error:  # comparing the results raised
                outcomes = [Check(variant, f"comparison: {type(error).__name__}: {error}")]
            for outcome in outcomes:
                pipe.send(("end", i, outcome.variant, outcome.reason, outcome.raised))
        pipe.send(("done",))


class _Worker:
    def __init__(self, suite: str, device: str, most: int | None) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, suite, device, most), daemon=True
        )
        self.process.start()
        theirs.close()
        self.case: Case | None = None
        self.record = Record("", "", "")
        self.at: tuple[int, int, str] | None = None  # position, sample, variant under way
        self.since = time.monotonic()

    def take(self, case: Case, variants: frozenset[str], begin: int, record: Record) -> None:
        self.case, self.record, self.at = case, record, None
        self.since = time.monotonic()
        self.pipe.send((case, variants, begin))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def end(self) -> str:
        """How the process ended."""
        self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"process killed by {signal.Signals(-code).name}"
        return f"process ended with code {code}"


def run_cases(
    cases: list[Case],
    variants: frozenset[str],
    *,
    suite: str = "ops",
    jobs: int = 1,
    device: str = "neuron",
    most: int | None = None,
    timeout_s: float = 60.0,
    on_idle: Callable[[], None] = lambda: None,
) -> Iterator[Record]:
    """Runs all cases of ``suite`` in ``jobs`` processes and yields their records as they complete.

    ``most`` limits the samples of a case. A check that takes longer than ``timeout_s`` is a failure.
    """
    todo = list(reversed(cases))
    workers: list[_Worker] = []
    try:
        while todo or workers:
            while todo and len(workers) < jobs:
                worker = _Worker(suite, device, most)
                case = todo.pop()
                worker.take(case, variants, 0, Record(case.op, case.dtype, case.layout))
                workers.append(worker)
            ready = wait([w.pipe for w in workers], timeout=1.0)
            on_idle()
            for worker in list(workers):
                lost = None
                if worker.pipe in ready:
                    try:
                        done = _take_messages(worker)
                    except (EOFError, ConnectionResetError):
                        done, lost = False, worker.end()
                    if done:
                        yield worker.record
                        if todo:
                            case = todo.pop()
                            worker.take(case, variants, 0, Record(case.op, case.dtype, case.layout))
                        else:
                            worker.kill()
                            workers.remove(worker)
                elif time.monotonic() - worker.since > timeout_s * (1 if worker.at else 3):
                    lost = f"no result after {timeout_s:g} s"
                if lost is not None:
                    worker.kill()
                    workers.remove(worker)
                    again = _resume(worker, lost, variants, suite, device, most)
                    if again is None:
                        yield worker.record
                    else:
                        workers.append(again)
    finally:
        for worker in workers:
            worker.kill()


def _take_messages(worker: _Worker) -> bool:
    """Reads what there is; whether the case is complete."""
    while worker.pipe.poll():
        message = worker.pipe.recv()
        now = time.monotonic()
        worker.record.seconds = round(worker.record.seconds + now - worker.since, 3)
        worker.since = now
        if message[0] == "begin":
            worker.at = message[1:]
        elif message[0] == "end":
            worker.record.add(*message[1:])
        elif message[0] == "unusable":
            worker.record.failures.append({"sample": -1, "variant": "-", "reason": message[1]})
            return True
        else:
            return True
    return False


def _resume(
    lost: _Worker, how: str, variants: frozenset[str], suite: str, device: str, most: int | None
) -> _Worker | None:
    """A fresh worker that goes on after the check that was lost; None if not even samples could be made."""
    if lost.case is None or lost.at is None:
        lost.record.failures.append(
            {"sample": -1, "variant": "-", "reason": f"{how}, making samples"}
        )
        return None
    position, sample, variant = lost.at
    lost.record.add(sample, variant, how, False)
    worker = _Worker(suite, device, most)
    worker.take(lost.case, variants, position + 1, lost.record)
    return worker
