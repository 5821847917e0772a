"""One report for each rule and call site, on one of the ranks that meet it; and how often each was met."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from neuron_dist.fidelity.environment import MODE_VARIABLE
from neuron_dist.fidelity.errors import FidelityError, FidelityWarning
from neuron_dist.fidelity.site import Site, call_site

if TYPE_CHECKING:
    from neuron_dist.fidelity.rule import Rule

__all__ = ["Claim", "Count", "Reporter", "counts", "process_reporter", "store_claim"]

Claim = Callable[[str], bool]
"""Asked once for each rule and site: whether this rank shall print the report of that key."""


@dataclass(frozen=True)
class Count:
    """How often a rule was violated at a site, on this rank; what a SITE record of the trace holds."""

    rule: str
    site: str
    message: str
    """Of the first time."""
    count: int

    def to_dict(self) -> dict[str, Any]:
        """``{"rule", "site", "message", "count"}``."""
        return asdict(self)


@dataclass
class _Entry:
    message: str
    count: int = 0
    reported: bool = False


class Reporter:
    """Thread-safe; no lock is held while a warning is issued or a claim made."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Site], _Entry] = {}
        self._lock = threading.Lock()

    def tell(self, found: Iterable[tuple[Rule, str]], strict: bool, claim: Claim) -> None:
        """Reports the rules that a call violates, each with its message.

        Raises :class:`FidelityError` where ``strict`` and one of them refuses the call.
        """
        refused = []
        for rule, message in found:
            if strict and rule.raises_in_strict:
                self.count(rule.id, message)
                refused.append(message)
            else:
                self.report(rule.id, message, claim)
        if refused:
            messages = "\n".join(refused)
            raise FidelityError(f"{messages} To go on in spite of it: {MODE_VARIABLE}=warn.")

    def report(self, rule: str, message: str, claim: Claim) -> None:
        """Warns of the caller's call site, the first time that it violates ``rule``, if this rank is the one to say it.

        Where Python's filters make the warning an exception, it is raised on every rank and each time: a collective
        that one rank only does not enter would leave the others waiting.
        """
        site = call_site()
        with self._lock:
            entry = self._count(rule, site, message)
            if entry.reported:
                return
            entry.reported = True
        if not (_filters_raise(message, site) or claim(f"{rule}@{site.filename}:{site.lineno}")):
            return
        try:
            # A registry of its own, so that Python's "once for each location" does not hide a second rule.
            warnings.warn_explicit(
                message,
                FidelityWarning,
                site.filename,
                site.lineno,
                site.module or None,
                registry={},
            )
        except FidelityWarning:
            entry.reported = False
            raise

    def count(self, rule: str, message: str) -> None:
        """Counts a violation at the caller's call site that is said otherwise, or not at all."""
        site = call_site()
        with self._lock:
            self._count(rule, site, message)

    def counts(self) -> list[Count]:
        """What this rank has met, in order of the first time."""
        with self._lock:
            return [
                Count(rule, str(site), e.message, e.count)
                for (rule, site), e in self._entries.items()
            ]

    def _count(self, rule: str, site: Site, message: str) -> _Entry:
        entry = self._entries.setdefault((rule, site), _Entry(message))
        entry.count += 1
        return entry


process_reporter = Reporter()
"""Of all groups of this process: a line that calls on two groups is one site."""


def counts() -> list[Count]:
    """What this process has met, for the summary at its end and for the trace."""
    return process_reporter.counts()


def store_claim(store: Callable[[], dist.Store]) -> Claim:
    """A claim that the first rank to come wins, by a counter in the c10d store that all ranks share.

    ``store`` is called at each claim. Where the store is gone, or no process group is there yet, the rank speaks for
    itself: a report too many is better than one that nobody makes.
    """

    def claim(key: str) -> bool:
        try:
            return store().add(f"neuron_dist/fidelity/{key}", 1) == 1
        except (dist.DistError, ValueError):
            return True

    return claim


def _filters_raise(message: str, site: Site) -> bool:
    """Whether the filters of :mod:`warnings` make a report an exception, found as that module finds it."""
    filters: Any = warnings.filters
    for action, text, category, module, lineno in filters:
        if (
            _matches(text, message)
            and issubclass(FidelityWarning, category)
            and _matches(module, site.module or site.filename.removesuffix(".py"))
            and lineno in (0, site.lineno)
        ):
            return action == "error"
    return False


def _matches(pattern: Any, text: str) -> bool:
    """A filter's pattern: nothing, a compiled one, or for Python's own default filters a plain text."""
    if pattern is None:
        return True
    return pattern == text if isinstance(pattern, str) else pattern.match(text) is not None
