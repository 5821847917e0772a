"""What runs at the end of a work rather than in the program: copies into views, and futures' callbacks.

The native clock runs it on a stream of its own, whose time each time begins at the end of the work, on whichever
thread noticed that end. The trace does not say which work it was; the recorded times do: a record on that stream
either goes on where the one before ended, or begins at the end of a work that had been noted before.
"""

from __future__ import annotations

from neuron_dist.simulation.clocks import BEGINNING, Clocks, Value

__all__ = ["CALLBACK_STREAM", "Callbacks"]

CALLBACK_STREAM = 1 << 30
"""``kCallbackStream`` of the native clock."""


class Callbacks:
    """The callback stream of one rank."""

    def __init__(self, clocks: Clocks, works: dict[int, list[Value]], dispatch_ns: int) -> None:
        """``works``: the ends of each work's operations; what a work's own copies take is added to it."""
        self._clocks, self._works, self._dispatch = clocks, works, dispatch_ns
        self._ended: dict[int, list[int]] = {}
        """Recorded end -> works."""
        self._told: set[int] = set()
        """Works whose end the program was told of: what follows is no part of them."""
        self._work = 0
        self._value: Value = BEGINNING
        self._recorded_ns = -1
        self._host: Value = BEGINNING
        self._recorded_host_ns = -1

    def ended(self, work: int, recorded_ns: int) -> None:
        """A COLLECTIVE or MESSAGE says that an operation of this work ended then."""
        self._ended.setdefault(recorded_ns, []).append(work)

    def at(self, recorded_ns: int, issues: bool) -> Value:
        """The stream's value for a record of this time; ``issues``: an operator or a collective, which dispatch."""
        spent = self._dispatch if issues else 0
        goes_on = max(self._recorded_ns, self._recorded_host_ns + spent if spent else -1)
        works = self._ended.get(recorded_ns - spent, [])
        if recorded_ns != goes_on and works:
            self._work = next((w for w in works if w not in self._told), works[-1])
            self._value = self._host = self._clocks.latest(self._works.get(self._work, ()))
            self._recorded_ns = self._recorded_host_ns = recorded_ns - spent
        if spent:
            self._host = (self._host[0], self._host[1] + spent)
            self._recorded_host_ns += spent
            self._value = self._clocks.later(self._value, self._host)
        return self._value

    def moved(self, value: Value, recorded_ns: int) -> None:
        """The stream has come to ``value``, which was ``recorded_ns`` in the run."""
        self._value, self._recorded_ns = value, recorded_ns

    def computed(self, recorded_ns: int) -> None:
        """An operator on the stream ended then: a copy into a view, unless the program had been told before."""
        if self._work and self._work not in self._told:
            self._works.setdefault(self._work, []).append(self._value)
            self._ended.setdefault(recorded_ns, []).append(self._work)

    def recorded(self) -> None:
        """The stream's time was recorded for a future: the program is told of the end."""
        self._told.add(self._work)
