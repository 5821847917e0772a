"""A rank's records in program order as clock values: what the native clock does, without knowing any time yet.

Runs of operators between two synchronisations are one value a stream, by cumulative sums; only synchronisations cost
time here. The recorded times are looked at for one thing, which host thread a record is of (see
:meth:`_Compiler.host_for`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neuron_dist.simulation.clocks import BEGINNING, Clocks, Value
from neuron_dist.simulation.roofline import Roofline, tensor_kind
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["Port", "RankClock", "Timed", "compile_rank", "durations_of"]

SYNCHRONISING = (Kind.RECORD, Kind.WAIT, Kind.HOST_WAIT, Kind.ISSUE, Kind.WORK_WAIT, Kind.STEP)

COPY_BACK_STREAM, CALLBACK_STREAM = 1 << 29, 1 << 30
"""Streams of a work, plus its number: of the copies that belong to it, and of what follows on its end."""


class Port(NamedTuple):
    """Where a rank's ISSUE joins its operation."""

    ready: tuple[int, ...]
    """Nodes that are not before this rank is ready."""
    end: Value
    """When the rank's part is over."""


@dataclass
class Timed:
    """Things, each with the two values of which the later is its time."""

    index: list[int] = field(default_factory=list)
    first: list[Value] = field(default_factory=list)
    second: list[Value] = field(default_factory=list)

    def add(self, index: int, first: Value, second: Value = BEGINNING) -> None:
        self.index.append(index)
        self.first.append(first)
        self.second.append(second)

    def times(
        self, times_ns: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(their indices, times, and whether those are known)."""
        first, second = _pairs(self.first), _pairs(self.second)
        ready = known[first[:, 0]] & known[second[:, 0]]
        values = (times_ns[pair[:, 0]] + pair[:, 1] for pair in (first, second))
        return np.array(self.index, np.int64), np.maximum(*values), ready


@dataclass
class _Segments:
    """Operators of one stream between two synchronisations; arrays of all operators, by segment."""

    kernels: np.ndarray
    """Indices of the KERNEL records."""
    durations_ns: np.ndarray
    within_ns: np.ndarray
    """From the begin of the segment to the end, were the host not to come late."""
    host_lead_ns: np.ndarray
    """How much later than the host's value the segment would have had to begin by then."""
    segment: np.ndarray
    """Number of the segment."""


@dataclass
class RankClock:
    """One rank's records as values."""

    points: Timed
    """All records that are a point in time, in program order; of a STEP its end."""
    segments: _Segments
    begins: Timed
    """Of each segment: the stream's value, and the host's."""

    def kernel_times(
        self, times_ns: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(indices of the KERNEL records, their starts, their ends, whether those are known)."""
        stream, host, of = _pairs(self.begins.first), _pairs(self.begins.second), self.segments
        ready = known[stream[:, 0]] & known[host[:, 0]]
        stream_ns, host_ns = (times_ns[pair[:, 0]] + pair[:, 1] for pair in (stream, host))
        ends = of.within_ns + np.maximum(
            stream_ns[of.segment], host_ns[of.segment] + of.host_lead_ns
        )
        return of.kernels, ends - of.durations_ns, ends, ready[of.segment]


def _pairs(values: list[Value]) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1, 2)


def durations_of(trace: RankTrace, roofline: Roofline, kernels: np.ndarray) -> np.ndarray:
    """Durations of the KERNEL records of these indices, int64 ns."""
    peaks = np.array([roofline.tensor_flops[tensor_kind(trace.dtype_name(n))] for n in range(256)])
    part = trace.records[kernels]
    return roofline.durations_ns(part["a"], part["b"], peaks[part["dtype"]], part["flag"])


def compile_rank(
    trace: RankTrace, clocks: Clocks, ports: Mapping[int, Port], roofline: Roofline
) -> RankClock:
    """Adds a rank's values to ``clocks``. ``ports`` by the index of the ISSUE record."""
    return _Compiler(trace, clocks, ports, roofline).compiled()


class _Span(NamedTuple):
    """A segment."""

    run: int
    """Synchronisations before it."""
    stream: int
    length_ns: int
    lead_ns: int
    """The host's lead at its end."""
    recorded_ns: int
    """When it began in the run."""


class _Compiler:
    def __init__(
        self, trace: RankTrace, clocks: Clocks, ports: Mapping[int, Port], roofline: Roofline
    ) -> None:
        self.trace, self.clocks, self.ports, self.roofline = trace, clocks, ports, roofline
        self.dispatch = int(np.floor(roofline.dispatch_ns + 0.5))
        self.streams: dict[int, Value] = {}
        self.caught_up: dict[int, Value] = {}
        """Streams known not to be before this value of the host; while dispatch takes no time."""
        self.events: dict[int, Value] = {}
        self.works: dict[int, list[Value]] = {}
        self.host: Value = BEGINNING
        """Less what was dispatched since the first record."""
        self.recorded_host_ns = 0
        self.hosts_at_ends: dict[int, Value] = {}
        """Of the works' own streams: the host of the thread there, likewise less what was dispatched on such streams."""
        self.points, self.begins = Timed(), Timed()
        self.waiting: list[int] = []
        """HOST_WAITs of a wait for the whole device, but for the last."""

    def compiled(self) -> RankClock:
        table = self.trace.records
        kind, at_end = table["kind"], table["stream"] >= COPY_BACK_STREAM
        syncs = np.flatnonzero(np.isin(kind, SYNCHRONISING))
        counted = (kind == Kind.KERNEL) | (kind == Kind.ISSUE)
        issued = np.where(at_end, np.cumsum(counted & at_end), np.cumsum(counted & ~at_end))
        issued *= self.dispatch
        segments, spans = self.segments(syncs, issued)
        part = table[syncs]
        columns = zip(
            syncs.tolist(), part["kind"].tolist(), part["stream"].tolist(), part["flag"].tolist(), part["a"].tolist(),
            part["c"].tolist(), part["start_ns"].tolist(), issued[syncs].tolist(), strict=True,
        )  # fmt: skip
        at = 0
        for run, (index, what, stream, flag, a, c, start, spent) in enumerate(columns):
            while at < len(spans) and spans[at].run == run:
                self.operators(spans[at])
                at += 1
            if what == Kind.RECORD:
                self.events[a] = self.streams.get(stream, BEGINNING)
                self.points.add(index, self.events[a])
            elif what == Kind.WAIT:
                self.waits(index, stream, self.events.get(a, BEGINNING))
            elif what == Kind.ISSUE:
                self.issue(index, stream, c, start, spent)
            elif what == Kind.STEP:
                streams = (v for s, v in self.streams.items() if s < COPY_BACK_STREAM)
                self.points.add(index, self.clocks.latest((self.now(spent), *streams)))
            elif what == Kind.WORK_WAIT:
                self.work_waits(index, stream, c, start, spent)
            elif flag:
                self.host_waits(index, self.events.get(a, BEGINNING), start, spent)
            else:
                self.host_waits(index, self.streams.get(stream, BEGINNING), start, spent)
                self.device_waits(index)
        for span in spans[at:]:
            self.operators(span)
        return RankClock(self.points, segments, self.begins)

    def now(self, spent_ns: int) -> Value:
        """The host's value where so much has been dispatched."""
        return self.host[0], self.host[1] + spent_ns

    def host_for(self, stream: int, recorded_ns: int) -> Value:
        """The host's value, for what began on ``stream`` at ``recorded_ns`` in the run.

        Each thread of the program has a host clock, and the records do not say whose they are: another thread has not
        waited for what the main thread has. What began before the main thread's last wait was over was not its.
        """
        if stream >= COPY_BACK_STREAM:
            return self.hosts_at_ends.get(stream, BEGINNING)
        later = recorded_ns < self.recorded_host_ns and not self.dispatch
        return BEGINNING if later else self.host

    def operators(self, span: _Span) -> None:
        stream = span.stream
        begin = self.streams.get(stream, BEGINNING)
        host = self.host_for(stream, span.recorded_ns)
        self.begins.add(-1, begin, host)
        after = (begin[0], begin[1] + span.length_ns)
        if self.dispatch or self.caught_up.get(stream) != host:
            after = self.clocks.later(after, (host[0], host[1] + span.lead_ns + span.length_ns))
            self.caught_up[stream] = host
        self.streams[stream] = after
        if COPY_BACK_STREAM <= stream < CALLBACK_STREAM:
            self.works.setdefault(stream - COPY_BACK_STREAM, []).append(after)

    def waits(self, index: int, stream: int, value: Value) -> None:
        now = self.clocks.later(self.streams.get(stream, BEGINNING), value)
        self.streams[stream] = now
        self.points.add(index, now)

    def issue(self, index: int, stream: int, work: int, recorded_ns: int, spent_ns: int) -> None:
        host = self.host_for(stream, recorded_ns)
        now = (host[0], host[1] + spent_ns)
        own = self.streams.get(stream, BEGINNING) if stream >= 0 else now
        port = self.ports[index]
        for node in port.ready:
            self.clocks.feed(node, own)
            if own != now:
                self.clocks.feed(node, now)
        self.works.setdefault(work, []).append(port.end)
        self.points.add(index, own, now)

    def work_waits(
        self, index: int, stream: int, work: int, recorded_ns: int, spent_ns: int
    ) -> None:
        end = self.clocks.latest(self.works.get(work, ()))
        if stream < 0:
            self.host_waits(index, end, recorded_ns, spent_ns)
        elif stream < COPY_BACK_STREAM:
            self.waits(index, stream, end)
        else:  # what follows on the work's end begins, on a thread whose host is there then, too
            self.streams[stream] = end
            self.hosts_at_ends[stream] = (end[0], end[1] - spent_ns)
            self.points.add(index, end)

    def host_waits(self, index: int, value: Value, recorded_ns: int, spent_ns: int) -> None:
        if recorded_ns < self.recorded_host_ns and not self.dispatch:  # another thread's
            self.points.add(index, value)
            return
        now = self.clocks.later(self.now(spent_ns), value)
        self.host = (now[0], now[1] - spent_ns)
        self.recorded_host_ns = recorded_ns
        self.points.add(index, now)

    def device_waits(self, index: int) -> None:
        """A wait for the whole device is one HOST_WAIT a stream in a row, all of the time when it was over."""
        table, following = self.trace.records, index + 1
        alike = following < len(table) and all(
            table[name][following] == table[name][index] for name in ("kind", "flag", "start_ns")
        )
        if alike:
            self.waiting.append(len(self.points.index) - 1)
            return
        for place in self.waiting:
            self.points.first[place] = self.points.first[-1]
        self.waiting.clear()

    def segments(self, syncs: np.ndarray, issued: np.ndarray) -> tuple[_Segments, list[_Span]]:
        """``issued``: dispatch time up to each record."""
        table = self.trace.records
        kernels = np.flatnonzero(table["kind"] == Kind.KERNEL)
        runs, stream = np.searchsorted(syncs, kernels), table["stream"][kernels].astype(np.int64)
        order = np.lexsort((stream, runs))  # stable, so in program order on each stream
        kernels, runs, stream = kernels[order], runs[order], stream[order]
        recorded, ended = table["start_ns"][kernels], table["end_ns"][kernels]
        starts = np.ones(len(kernels), bool)
        starts[1:] = (runs[1:] != runs[:-1]) | (stream[1:] != stream[:-1])
        if not self.dispatch:  # a gap: another thread's host goes on here
            starts[1:] |= recorded[1:] > ended[:-1]
        first = np.flatnonzero(starts)
        last = np.append(first[1:], len(kernels))[: len(first)] - 1
        segment = np.cumsum(starts) - 1
        durations = durations_of(self.trace, self.roofline, kernels)
        through = np.cumsum(durations)
        within = through - (through[first] - durations[first])[segment]
        lead = np.zeros(len(kernels), np.int64)
        if self.dispatch:
            lead = issued[kernels] - (within - durations)
            for a, b in zip(first.tolist(), (last + 1).tolist(), strict=True):
                np.maximum.accumulate(lead[a:b], out=lead[a:b])
        columns = (runs[first], stream[first], within[last], lead[last], recorded[first])
        spans = [_Span(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
        return _Segments(kernels, durations, within, lead, segment), spans
