"""The collectives and messages of a run, put together from what each of their ranks wrote.

A rank's file has an ISSUE where the program called an operation, and a COLLECTIVE or MESSAGE anywhere later, where
its end was noticed. Collectives are one by group and sequence number. A message is one by channel (group, sender,
receiver) and number; a receive's ISSUE does not know its number yet, so it is paired with its MESSAGE by work and
order, and where that is missing takes the next number of the channel that is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neuron_dist.simulation.teams import Team, Teams
from neuron_dist.simulation.trace import NOBODY, Kind, RankTrace, TraceError

__all__ = ["ANY", "EAGER", "UNEVEN", "Operation", "collect"]

ANY = -1
UNEVEN, EAGER = 2, 4
"""Bits of ``flag2``: ranks give or get different sizes; a send that is complete without its receiver."""

Place = tuple[int, int]
"""(position of the trace, index of the record)."""


@dataclass
class Operation:
    """A collective or a message."""

    op: str
    """As the planner calls it; ``send`` for messages."""
    team: Team
    number: int
    """Sequence number in the group, or in the channel."""
    sizes: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Global rank -> bytes of the whole collective, or of the message, by its account, and whether sizes are uneven."""
    root: int = 0
    """Group rank; of rooted collectives."""
    channel: tuple[int, int] | None = None
    """Messages: sender (``ANY``: not known) and receiver, group ranks."""
    eager: bool = False
    algorithm: str = ""
    """That the run used; '' where no rank noted its end."""
    issues: dict[int, Place] = field(default_factory=dict)
    """Global rank -> its ISSUE; of messages the sender's."""
    received: Place | None = None
    """Messages: the receiver's ISSUE."""
    noted: list[tuple[Place, bool]] = field(default_factory=list)
    """COLLECTIVE and MESSAGE records, and whether it is a receiver's."""

    @property
    def nbytes(self) -> int:
        """By the largest account."""
        return max((nbytes for nbytes, _ in self.sizes.values()), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that take part, in group order; of messages sender and receiver, as far as they are known."""
        if self.channel is None:
            return self.team.ranks
        return tuple(self.team.ranks[end] for end in self.channel if end != ANY)

    def __str__(self) -> str:
        if self.channel is None:
            return f"{self.op} {self.number} of {self.team.label}"
        *source, target = self.ranks
        sender = f"rank {source[0]}" if source else "any rank"
        return f"message {self.number} from {sender} to rank {target} of {self.team.label}"


def collect(traces: Sequence[RankTrace]) -> list[Operation]:
    """All operations: collectives by group and sequence number, then messages by channel and number.

    Raises :class:`TraceError` where ranks contradict one another or a record's ISSUE is missing.
    """
    return _Collector(traces).operations()


class _Collector:
    def __init__(self, traces: Sequence[RankTrace]) -> None:
        self.traces = traces
        self.teams = Teams()
        self.collectives: dict[tuple[int, int], Operation] = {}
        self.messages: dict[tuple[int, int, int, int], Operation] = {}
        self.waiting: list[tuple[Team, int, int, Place, int]] = []
        """Receives without a MESSAGE: team, sender or ``NOBODY``, receiver, ISSUE, bytes."""
        for position in range(len(traces)):
            self._read(position)

    def operations(self) -> list[Operation]:
        self._number_the_rest()
        ordered = [self.collectives[key] for key in sorted(self.collectives)]
        return ordered + [self.messages[key] for key in sorted(self.messages)]

    def _read(self, position: int) -> None:
        trace = self.traces[position]
        teams = self.teams.of(trace)
        table = trace.records
        places = np.flatnonzero(np.isin(table["kind"], (Kind.ISSUE, Kind.COLLECTIVE, Kind.MESSAGE)))
        part = table[places]
        columns = zip(
            places.tolist(), *(part[c].tolist() for c in ("kind", "name", "name2", "flag2", "group", "a", "b", "c", "d")), strict=True
        )  # fmt: skip
        own = {team.number: team.ranks.index(trace.rank) for team in teams.values()}
        receives: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        done: dict[tuple[int, int], list[tuple[int, int, int, int]]] = defaultdict(list)
        for index, kind, name, name2, flag2, group, a, b, c, d in columns:
            op = trace.names.get(name, f"#{name}")
            team = teams.get(group)
            if team is None:
                raise TraceError(
                    f"{trace.path}: record {index}, {op}, is of group {group}, which no GROUP record describes"
                )
            me, place = own[team.number], (position, index)
            if kind == Kind.ISSUE:
                if op == "send":
                    self._sent(team, me, d, a, (b, False), bool(flag2 & EAGER), trace.rank, place)
                elif op == "recv":
                    receives[group, c].append((d, b, index))
                else:
                    self._issued(
                        op,
                        team,
                        a,
                        (b, bool(flag2 & UNEVEN)),
                        0 if d == NOBODY else d,
                        trace,
                        place,
                    )
            elif kind == Kind.COLLECTIVE:
                operation = self.collectives.get((team.number, a))
                if operation is None or trace.rank not in operation.issues:
                    raise TraceError(
                        f"{trace.path}: record {index} says how {op} {a} of {team.label} went, but no ISSUE began it"
                    )
                operation.noted.append((place, False))
                operation.algorithm = operation.algorithm or trace.names.get(name2, "")
            elif op == "send":
                message = self._message(team, me, d, a)
                message.noted.append((place, False))
            else:
                done[group, c].append((a, d, b, index))
        for (group, work), issued in receives.items():
            self._received(trace, position, teams[group], own, issued, done.pop((group, work), []))
        if done:
            index = next(iter(done.values()))[0][3]
            raise TraceError(
                f"{trace.path}: record {index} says how a recv went, but no ISSUE began it"
            )

    def _issued(
        self,
        op: str,
        team: Team,
        number: int,
        size: tuple[int, bool],
        root: int,
        trace: RankTrace,
        place: Place,
    ) -> None:
        operation = self.collectives.get((team.number, number))
        if operation is None:
            operation = self.collectives[team.number, number] = Operation(
                op, team, number, root=root
            )
        if operation.op != op or operation.root != root:
            other = next(iter(operation.issues))
            raise TraceError(
                f"{trace.path}: {op} (root {root}) is number {number} of {team.label}, but rank {other} has "
                f"{operation.op} (root {operation.root}) there"
            )
        if trace.rank in operation.issues:
            raise TraceError(f"{trace.path}: record {place[1]} issues {operation} a second time")
        operation.sizes[trace.rank] = size
        operation.issues[trace.rank] = place

    def _message(self, team: Team, source: int, target: int, number: int) -> Operation:
        key = (team.number, source, target, number)
        if key not in self.messages:
            self.messages[key] = Operation("send", team, number, channel=(source, target))
        return self.messages[key]

    def _sent(
        self,
        team: Team,
        me: int,
        peer: int,
        number: int,
        size: tuple[int, bool],
        eager: bool,
        rank: int,
        place: Place,
    ) -> None:
        message = self._message(team, me, peer, number)
        message.sizes[rank], message.eager, message.issues[rank] = size, eager, place

    def _received(
        self, trace: RankTrace, position: int, team: Team, own: dict[int, int],
        issued: list[tuple[int, int, int]], done: list[tuple[int, int, int, int]],
    ) -> None:  # fmt: skip
        """Pairs the receives of one work with their MESSAGE records, in order; of equal bytes where some are."""
        me, left = own[team.number], list(issued)
        for number, peer, nbytes, index in sorted(done):
            able = [r for r in left if r[0] in (peer, NOBODY)]
            if not able:
                raise TraceError(
                    f"{trace.path}: record {index} says how a recv from {peer} of {team.label} went, but no ISSUE began it"
                )
            chosen = next((r for r in able if r[1] == nbytes), able[0])
            left.remove(chosen)
            message = self._message(team, peer, me, number)
            message.received = (position, chosen[2])
            message.noted.append(((position, index), True))
        for peer, nbytes, index in left:
            self.waiting.append((team, peer, me, (position, index), nbytes))

    def _number_the_rest(self) -> None:
        free: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for key in sorted(self.messages, reverse=True):
            if self.messages[key].received is None:
                free[key[:3]].append(key[3])
        beyond = 1 + max((key[3] for key in self.messages), default=0)
        for team, peer, target, place, nbytes in sorted(self.waiting, key=lambda w: w[3]):
            source = ANY if peer == NOBODY else peer
            numbers = free[team.number, source, target]
            if not numbers:
                beyond += 1
            message = self._message(team, source, target, numbers.pop() if numbers else beyond)
            message.received = place
            message.sizes.setdefault(team.ranks[target], (nbytes, False))
