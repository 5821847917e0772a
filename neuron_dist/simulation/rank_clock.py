"""A rank's records in program order as clock values: what the native clock does, without knowing any time yet.

Runs of operators between two synchronisations are one value a stream, by cumulative sums; only synchronisations cost
time here. The recorded times are looked at for one thing: what the records do not say of host threads
(:mod:`neuron_dist.simulation.callbacks` and :meth:`_Compiler.host_for`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neuron_dist.simulation.callbacks import CALLBACK_STREAM, Callbacks
from neuron_dist.simulation.clocks import BEGINNING, Clocks, Value
from neuron_dist.simulation.roofline import Roofline, tensor_kind
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["Port", "RankClock", "Timed", "compile_rank", "durations_of"]

SYNCHRONISING = (Kind.RECORD, Kind.WAIT, Kind.HOST_WAIT, Kind.ISSUE, Kind.WORK_WAIT, Kind.STEP)
ENDS = (Kind.COLLECTIVE, Kind.MESSAGE)


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
    callbacks: Timed
    """KERNEL records of callbacks: their ends."""
    callback_ns: list[int]
    """Their durations."""

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
        index, late, late_ready = self.callbacks.times(times_ns, known)
        index, ends = np.concatenate([of.kernels, index]), np.concatenate([ends, late])
        lengths = np.concatenate([of.durations_ns, np.array(self.callback_ns, np.int64)])
        return index, ends - lengths, ends, np.concatenate([ready[of.segment], late_ready])


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
        self.callbacks = Callbacks(clocks, self.works, self.dispatch)
        self.host: Value = BEGINNING
        """Less what was dispatched since the first record."""
        self.recorded_host_ns = 0
        self.points, self.begins, self.late = Timed(), Timed(), Timed()
        self.waiting: list[int] = []
        """HOST_WAITs of a wait for the whole device, but for the last."""

    def compiled(self) -> RankClock:
        table = self.trace.records
        kind, on_callback = table["kind"], table["stream"] == CALLBACK_STREAM
        wanted = np.isin(kind, SYNCHRONISING)
        called = on_callback & (kind == Kind.KERNEL)
        if (on_callback & (wanted | called)).any():
            wanted |= called | np.isin(kind, ENDS)
        syncs = np.flatnonzero(wanted)
        counted = ((kind == Kind.KERNEL) | (kind == Kind.ISSUE)) & ~on_callback
        issued = np.cumsum(counted) * self.dispatch
        segments, spans = self.segments(syncs, issued)
        lengths = np.zeros(len(syncs), np.int64)
        extra = np.flatnonzero(called[syncs])
        lengths[extra] = durations_of(self.trace, self.roofline, syncs[extra])
        part = table[syncs]
        columns = zip(
            syncs.tolist(), part["kind"].tolist(), part["stream"].tolist(), part["flag"].tolist(), part["a"].tolist(),
            part["c"].tolist(), part["start_ns"].tolist(), part["end_ns"].tolist(), issued[syncs].tolist(),
            lengths.tolist(), strict=True,
        )  # fmt: skip
        at = 0
        for run, (index, what, stream, flag, a, c, start, end, spent, length) in enumerate(columns):
            while at < len(spans) and spans[at].run == run:
                self.operators(spans[at])
                at += 1
            if what in ENDS:
                self.callbacks.ended(c, end)
                continue
            if stream == CALLBACK_STREAM:
                issues = what in (Kind.KERNEL, Kind.ISSUE)
                self.streams[stream] = self.callbacks.at(start, issues)
            if what == Kind.RECORD:
                self.events[a] = self.streams.get(stream, BEGINNING)
                self.points.add(index, self.events[a])
                if stream == CALLBACK_STREAM:
                    self.callbacks.recorded()
            elif what == Kind.WAIT:
                own = self.streams.get(stream, BEGINNING)
                self.moved(stream, self.clocks.later(own, self.events.get(a, BEGINNING)), start)
                self.points.add(index, self.streams[stream])
            elif what == Kind.ISSUE:
                self.issue(index, stream, c, start, spent)
            elif what == Kind.STEP:
                streams = (v for s, v in self.streams.items() if s != CALLBACK_STREAM)
                self.points.add(index, self.clocks.latest((self.now(spent), *streams)))
            elif what == Kind.KERNEL:
                own = self.streams[stream]
                self.moved(stream, (own[0], own[1] + length), end)
                self.callbacks.computed(end)
                self.late.add(index, self.streams[stream])
            elif what == Kind.WORK_WAIT and stream >= 0:
                own = self.streams.get(stream, BEGINNING)
                ended = self.clocks.latest((own, *self.works.get(c, ())))
                self.moved(stream, ended, start)
                self.points.add(index, ended)
            elif what == Kind.WORK_WAIT:
                self.host_waits(index, self.clocks.latest(self.works.get(c, ())), start, spent)
            elif flag:
                self.host_waits(index, self.events.get(a, BEGINNING), start, spent)
            else:
                self.host_waits(index, self.streams.get(stream, BEGINNING), start, spent)
                self.device_waits(index)
        for span in spans[at:]:
            self.operators(span)
        return RankClock(self.points, segments, self.begins, self.late, lengths[extra].tolist())

    def now(self, spent_ns: int) -> Value:
        """The host's value where so much has been dispatched."""
        return self.host[0], self.host[1] + spent_ns

    def host_for(self, recorded_ns: int) -> Value:
        """The host's value, for what began at ``recorded_ns`` in the run.

        Each thread of the program has a host clock, and the records do not say whose they are: autograd's thread has
        not waited for what the main thread has. What began before the main thread's last wait was over was not its.
        """
        later = recorded_ns < self.recorded_host_ns and not self.dispatch
        return BEGINNING if later else self.host

    def moved(self, stream: int, value: Value, recorded_ns: int) -> None:
        self.streams[stream] = value
        if stream == CALLBACK_STREAM:
            self.callbacks.moved(value, recorded_ns)

    def operators(self, span: _Span) -> None:
        begin, host = (
            self.streams.get(span.stream, BEGINNING),
            self.host_for(span.recorded_ns),
        )
        self.begins.add(-1, begin, host)
        after = (begin[0], begin[1] + span.length_ns)
        if self.dispatch or self.caught_up.get(span.stream) != host:
            after = self.clocks.later(after, (host[0], host[1] + span.lead_ns + span.length_ns))
            self.caught_up[span.stream] = host
        self.streams[span.stream] = after

    def issue(self, index: int, stream: int, work: int, recorded_ns: int, spent_ns: int) -> None:
        host = self.host_for(recorded_ns)
        now = (host[0], host[1] + spent_ns)
        if stream == CALLBACK_STREAM:
            now = BEGINNING
        own = self.streams.get(stream, BEGINNING) if stream >= 0 else now
        port = self.ports[index]
        for node in port.ready:
            self.clocks.feed(node, own)
            if own != now:
                self.clocks.feed(node, now)
        self.works.setdefault(work, []).append(port.end)
        self.points.add(index, own, now)

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
        """All operators but those of callbacks; ``issued``: dispatch time up to each record."""
        table = self.trace.records
        kernels = np.flatnonzero(
            (table["kind"] == Kind.KERNEL) & (table["stream"] != CALLBACK_STREAM)
        )
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
