"""How transfers that are under way at once share directed links, and when each is through.

A transfer is one collective's or message's whole use of the network after its latency. Alone it takes ``work_ns`` and
keeps each of its links busy for a part of that time, its *need* of the link, in (0, 1]. Beside others it runs at a
speed in (0, 1], the same on all of its links. :func:`share` says at which:

1. On each link the fair share is the level to which all transfers on it may fill, where one that needs less takes
   less and leaves the rest to the others. A transfer's speed is the smallest of share / need over its links, at
   most 1. The slowest are settled, what they use is taken off every link, and the others are done again.
2. A transfer may be settled by a link on which another, held up elsewhere, then uses less than its share. What is
   left over so is given to all that it helps, in equal steps of speed, until each has a link without room or runs at
   full speed: no capacity is left that somebody could use.

Results do not depend on the order of the transfers, and like transfers get like speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Demand", "Flows", "share"]

TIE = 1e-9
"""Speeds and rests of capacity closer than this are equal: above rounding, far below a nanosecond of any step."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What a transfer needs of the network at full speed."""

    number: int
    """Transfers of one number have one demand."""
    links: np.ndarray
    """Directed links of the cluster's topology, ascending, each once."""
    need: np.ndarray
    """Of each of these links the part of its capacity, in (0, 1]."""
    mask: int = field(init=False)
    """The links as bits."""

    def __post_init__(self) -> None:
        bits = np.zeros(int(self.links[-1]) + 1 if len(self.links) else 0, np.uint8)
        bits[self.links] = 1
        mask = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
        object.__setattr__(self, "mask", mask)


def share(demands: Sequence[Demand]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The speed of each transfer, in (0, 1], and its links without room that keep it from more (none at full speed)."""
    links = (
        np.unique(np.concatenate([d.links for d in demands])) if demands else np.zeros(0, np.int64)
    )
    need = np.zeros((len(demands), len(links)))
    for row, demand in zip(need, demands, strict=True):
        row[np.searchsorted(links, demand.links)] = demand.need
    speed, rest = np.ones(len(demands)), np.ones(len(links))
    open_ = np.ones(len(demands), bool)
    while open_.any():
        part = need[open_]
        level = _levels(part, rest)
        limit = np.divide(level, part, out=np.full(part.shape, np.inf), where=part > 0)
        found = np.minimum(limit.min(axis=1, initial=1.0), 1.0)
        slowest = found.min()
        settled = np.flatnonzero(open_)[found <= slowest * (1 + TIE)]
        speed[settled] = slowest
        open_[settled] = False
        rest = np.maximum(rest - slowest * need[settled].sum(axis=0), 0.0)
        if slowest == 1.0:
            break
    rest = np.maximum(1.0 - speed @ need, 0.0)
    while True:
        full = rest <= TIE
        growing = (speed < 1.0) & ~(need[:, full] > 0).any(axis=1)
        if not growing.any():
            break
        pull = need[growing].sum(axis=0)
        room = np.divide(rest, pull, out=np.full(len(links), np.inf), where=pull > 0)
        grow = min(float(room.min(initial=np.inf)), float(1.0 - speed[growing].max()))
        speed[growing] = np.where(1.0 - speed[growing] - grow <= TIE, 1.0, speed[growing] + grow)
        rest = np.maximum(1.0 - speed @ need, 0.0)
    tight = (need > 0) & (rest <= TIE) & (speed < 1.0)[:, None]
    return speed, [links[row] for row in tight]


def _levels(need: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """[links] the level f of each link at which sum(min(need, f)) fills its ``rest``; infinite where it never does."""
    count = len(need)
    ordered = np.sort(need, axis=0)
    below = np.cumsum(ordered, axis=0) - ordered
    levels = (rest - below) / np.arange(count, 0, -1)[:, None]
    fills = levels < ordered
    fills &= ordered.sum(axis=0) > rest * (1 + TIE)
    first = fills.argmax(axis=0)
    return np.where(fills.any(axis=0), levels[first, np.arange(need.shape[1])], np.inf)


class _Flow:
    __slots__ = ("cause", "demand", "end_ns", "since_ns", "speed", "work")

    def __init__(self, demand: Demand, work: float, now_ns: int) -> None:
        self.demand, self.work, self.since_ns = demand, work, now_ns
        self.speed, self.end_ns = 0.0, -1
        self.cause = np.zeros(0, np.int64)


class Flows:
    """The transfers under way. Times are whole nanoseconds and never go back."""

    def __init__(self, links: int) -> None:
        self.lost_ns = np.zeros(links)
        """[links] time that transfers lost because this link was shared; where several held one up, each its part."""
        self._flows: dict[int, _Flow] = {}
        self._touched = 0
        self._known: dict[tuple[int, ...], tuple[list[float], list[np.ndarray]]] = {}

    def begin(self, now_ns: int, transfer: int, demand: Demand, work_ns: int) -> None:
        """A transfer starts that alone takes ``work_ns``. Speeds change at the next :meth:`settle`."""
        self._flows[transfer] = _Flow(demand, float(work_ns), now_ns)
        self._touched |= demand.mask

    def end(self, now_ns: int, transfer: int) -> None:
        """A transfer is through."""
        flow = self._flows.pop(transfer)
        self._account(flow, now_ns)
        self._touched |= flow.demand.mask

    def ends(self, now_ns: int, transfer: int) -> bool:
        """Whether a transfer is under way and its end is now."""
        flow = self._flows.get(transfer)
        return flow is not None and flow.end_ns == now_ns

    def settle(self, now_ns: int) -> list[tuple[int, int]]:
        """New speeds after all that began or ended now: (when it will be through, transfer) where that has changed."""
        changed: list[tuple[int, int]] = []
        left = sorted(t for t in self._flows if self._flows[t].demand.mask & self._touched)
        seen: set[int] = set()
        for transfer in left:
            if transfer not in seen:
                members = self._joined(transfer)
                seen.update(members)
                changed += self._settle(now_ns, members)
        self._touched = 0
        return changed

    def _joined(self, transfer: int) -> list[int]:
        """All transfers that share links with this one, also by way of others, by their demands."""
        mask, members = self._flows[transfer].demand.mask, {transfer}
        grown = True
        while grown:
            grown = False
            for other, flow in self._flows.items():
                if other not in members and flow.demand.mask & mask:
                    members.add(other)
                    mask |= flow.demand.mask
                    grown = True
        return sorted(members, key=lambda t: (self._flows[t].demand.number, t))

    def _settle(self, now_ns: int, members: list[int]) -> list[tuple[int, int]]:
        flows = [self._flows[t] for t in members]
        key = tuple(f.demand.number for f in flows)
        if key not in self._known:
            speeds, causes = share([f.demand for f in flows])
            self._known[key] = speeds.tolist(), causes
        changed = []
        for transfer, flow, speed, cause in zip(members, flows, *self._known[key], strict=True):
            if flow.speed == speed and (flow.cause is cause or speed == 1.0):
                continue
            self._account(flow, now_ns)
            flow.cause = cause
            if flow.speed != speed:
                flow.speed = speed
                end_ns = max(now_ns, int(np.floor(now_ns + flow.work / speed + 0.5)))
                if flow.end_ns != end_ns:
                    flow.end_ns = end_ns
                    changed.append((end_ns, transfer))
        return changed

    def _account(self, flow: _Flow, now_ns: int) -> None:
        passed = now_ns - flow.since_ns
        assert passed >= 0, "time went back"
        flow.work = max(flow.work - flow.speed * passed, 0.0)
        if len(flow.cause) and passed:
            self.lost_ns[flow.cause] += (1.0 - flow.speed) * passed / len(flow.cause)
        flow.since_ns = now_ns
