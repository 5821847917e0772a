"""A run's operations as clock values: when each begins and ends, given when its ranks are ready.

Collectives of a group follow one another. Messages of a channel leave one after the other; an eager one ends for its
sender when it has been sent, any other when its receiver was ready, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuron_dist.simulation.clocks import BEGINNING, Clocks, Value
from neuron_dist.simulation.operations import ANY, Operation
from neuron_dist.simulation.prices import Cost, Prices
from neuron_dist.simulation.rank_clock import Port

__all__ = ["Wired", "Wiring"]


@dataclass
class Wired:
    """An operation and its times."""

    operation: Operation
    cost: Cost
    start: Value
    """When the last rank has arrived and the group, or channel, is free."""
    end: Value
    received: tuple[Value, Value]
    """Of an eager message's receiver; of all others the same as ``start`` and ``end``."""
    held: int | None = None
    """Node of the end, where the network decides it."""


class Wiring:
    """All operations of a run."""

    def __init__(
        self,
        operations: Sequence[Operation],
        traces: int,
        clocks: Clocks,
        prices: Prices,
        *,
        contended: bool,
    ) -> None:
        """``contended``: transfers over links end when :attr:`Wired.held` is released, else after their own time."""
        self.clocks, self.contended = clocks, contended
        self.ports: list[dict[int, Port]] = [{} for _ in range(traces)]
        """By position of the trace, by index of the ISSUE."""
        self.operations: list[Wired] = []
        self.by_start: dict[int, int] = {}
        """Node of the start -> position in ``operations``, for those with a held end."""
        free: dict[tuple[int, tuple[int, int] | None], Value] = {}
        """When the group, or the channel, has ended its last operation."""
        for operation in operations:
            line = operation.team.number, operation.channel
            cost = Cost(0) if ANY in (operation.channel or ()) else prices.of(operation)
            join = self._collective if operation.channel is None else self._message
            free[line] = join(operation, cost, free.get(line, BEGINNING))

    def _collective(self, operation: Operation, cost: Cost, free: Value) -> Value:
        start = self._node(missing=len(operation.issues) < len(operation.ranks))
        self.clocks.feed(start, free)
        wired = self._wire(operation, cost, start)
        for position, index in operation.issues.values():
            self.ports[position][index] = Port((start,), wired.end)
        return wired.end

    def _message(self, operation: Operation, cost: Cost, free: Value) -> Value:
        sent, received = next(iter(operation.issues.values()), None), operation.received
        leaves = self._node(missing=sent is None)
        self.clocks.feed(leaves, free)
        if operation.eager:
            wired = self._wire(operation, cost, leaves)
            arrives, done = self._node(), self._node()
            self.clocks.feed(arrives, (leaves, 0))
            self.clocks.feed(done, wired.end)
            wired.received = (arrives, 0), (done, 0)
            receiver = Port((arrives, done), (done, 0))
            free = wired.end
        else:
            start = self._node(missing=received is None)
            self.clocks.feed(start, (leaves, 0))
            wired = self._wire(operation, cost, start)
            receiver = Port((start,), wired.end)
            free = (leaves, cost.total_ns)
        if sent is not None:
            self.ports[sent[0]][sent[1]] = Port((leaves,), wired.end)
        if received is not None:
            self.ports[received[0]][received[1]] = receiver
        return free

    def _node(self, missing: bool = False) -> int:
        node = self.clocks.node()
        if missing:
            self.clocks.hold(node)  # nothing releases it
        return node

    def _wire(self, operation: Operation, cost: Cost, start: int) -> Wired:
        begin, end, held = (start, 0), (start, cost.total_ns), None
        if self.contended and cost.demand is not None:
            held = self._node(missing=True)
            end = (held, 0)
            self.by_start[start] = len(self.operations)
        wired = Wired(operation, cost, begin, end, (begin, end), held)
        self.operations.append(wired)
        return wired
