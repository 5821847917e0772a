"""Clock values as a graph: each is the latest of some earlier ones, each some fixed time after it.

A value is ``(node, after_ns)``: the node's time and so many nanoseconds. Adding a duration makes no node, and neither
does a maximum of which one side is known to win, so that a run of millions of operators needs few. Times are never
negative, and node 0 is the beginning, at 0.

Nodes can be *held*: what they wait for is decided outside, by a simulator that calls :meth:`Run.release`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["BEGINNING", "Clocks", "Run", "Value"]

Value = tuple[int, int]
BEGINNING: Value = (0, 0)


class Clocks:
    """Builds the graph."""

    def __init__(self) -> None:
        self.count = 1
        self.held: list[int] = []
        """Nodes, once for each time that they must be released."""
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.after_ns: list[int] = []

    def node(self) -> int:
        """A new node, to be fed."""
        self.count += 1
        return self.count - 1

    def hold(self, node: int) -> None:
        """Something outside must release this node, too."""
        self.held.append(node)

    def feed(self, node: int, value: Value) -> None:
        """``node`` is not before ``value``."""
        self.sources.append(value[0])
        self.targets.append(node)
        self.after_ns.append(value[1])

    def later(self, a: Value, b: Value) -> Value:
        """The later of two values."""
        if a[0] == b[0]:
            return a if a[1] >= b[1] else b
        if not b[0] and b[1] <= a[1]:
            return a
        if not a[0] and a[1] <= b[1]:
            return b
        node = self.count
        self.count += 1
        self.sources += (a[0], b[0])
        self.targets += (node, node)
        self.after_ns += (a[1], b[1])
        return node, 0

    def latest(self, values: Iterable[Value]) -> Value:
        """The latest of some values; the beginning if there are none."""
        best: dict[int, int] = {}
        for node, after in values:
            if node not in best or best[node] < after:
                best[node] = after
        if (
            len(best) > 1
            and 0 in best
            and best[0] <= max(after for node, after in best.items() if node)
        ):
            del best[0]
        if len(best) <= 1:
            return next(iter(best.items()), BEGINNING)
        found = self.node()
        for value in best.items():
            self.feed(found, value)
        return found, 0


class Run:
    """Evaluates the graph as what it depends on becomes known."""

    def __init__(self, clocks: Clocks, watched: Iterable[int]) -> None:
        """``watched``: nodes of which :meth:`settled` tells."""
        order = np.argsort(np.array(clocks.sources, np.int64), kind="stable")
        sources = np.array(clocks.sources, np.int64)[order]
        self._first = np.searchsorted(sources, np.arange(clocks.count + 1)).tolist()
        self._target = np.array(clocks.targets, np.int64)[order].tolist()
        self._after = np.array(clocks.after_ns, np.int64)[order].tolist()
        inputs = np.array(clocks.targets + clocks.held, np.int64)
        self._open = np.bincount(inputs, minlength=clocks.count).tolist()
        self._watched = bytearray(clocks.count)
        for node in watched:
            self._watched[node] = 1
        self.times = [0] * clocks.count
        """Of each node, in ns; a lower bound where it is not known yet."""
        self._settled: list[int] = []
        self._spread([node for node, inputs in enumerate(self._open) if not inputs])

    def release(self, node: int, time_ns: int) -> None:
        """A held node is not before ``time_ns``, and no longer held (once)."""
        self.times[node] = max(self.times[node], time_ns)
        self._open[node] -= 1
        if not self._open[node]:
            self._spread([node])

    def settled(self) -> list[int]:
        """The watched nodes whose times have become known since the last call."""
        found, self._settled = self._settled, []
        return found

    def known(self) -> np.ndarray:
        """[nodes] whether the time is known."""
        return np.array(self._open) == 0

    def _spread(self, ready: list[int]) -> None:
        times, first, target, after, left = (
            self.times,
            self._first,
            self._target,
            self._after,
            self._open,
        )
        while ready:
            node = ready.pop()
            if self._watched[node]:
                self._settled.append(node)
            time = times[node]
            for edge in range(first[node], first[node + 1]):
                to = target[edge]
                then = time + after[edge]
                if then > times[to]:
                    times[to] = then
                left[to] -= 1
                if not left[to]:
                    ready.append(to)
