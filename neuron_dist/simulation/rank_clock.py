"""A rank's records in program order as clock values: what the native clock does, without knowing any time yet.

Runs of operators between two synchronisations are one value a stream, by cumulative sums; only synchronisations cost
time here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from neuron_dist.simulation.clocks import BEGINNING, Clocks, Value
from neuron_dist.simulation.roofline import Roofline, tensor_kind
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["Port", "Program", "Timed", "compile_program", "durations_of"]

SYNCHRONISING = (Kind.RECORD, Kind.WAIT, Kind.HOST_WAIT, Kind.ISSUE, Kind.WORK_WAIT, Kind.STEP)


class Port(NamedTuple):
    """Where a rank's ISSUE joins its operation."""

    ready: tuple[int, ...]
    """Nodes that are not before this rank is ready."""
    end: Value
    """When the rank's part is over."""


@dataclass
class Timed:
    """Records, each with the two values of which the later is its time."""

    index: list[int] = field(default_factory=list)
    first: list[Value] = field(default_factory=list)
    second: list[Value] = field(default_factory=list)

    def add(self, index: int, first: Value, second: Value = BEGINNING) -> None:
        self.index.append(index)
        self.first.append(first)
        self.second.append(second)

    def times(self, times_ns: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(index of the records, their times, whether those are known)."""
        first, second = _pairs(self.first), _pairs(self.second)
        ready = known[first[:, 0]] & known[second[:, 0]]
        values = (times_ns[pair[:, 0]] + pair[:, 1] for pair in (first, second))
        return np.array(self.index, np.int64), np.maximum(*values), ready


@dataclass
class Program:
    """One rank's."""

    points: Timed
    """All records that are a point in time, in program order; of a STEP its end."""
    kernels: np.ndarray
    """Indices of the KERNEL records, by segment: those of one stream between two synchronisations."""
    durations_ns: np.ndarray
    """Of ``kernels``."""
    within_ns: np.ndarray
    """Of ``kernels``: from the begin of the segment to the end, were the host not to come late."""
    host_lead_ns: np.ndarray
    """Of ``kernels``: how much later than the host's value the segment would have had to begin by then."""
    segment: np.ndarray
    """Of ``kernels``: number of the segment."""
    begins: Timed
    """Of each segment: the stream's value, and the host's."""

    def kernel_ends(self, times_ns: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ends of ``kernels``, whether they are known)."""
        stream, host = _pairs(self.begins.first), _pairs(self.begins.second)
        ready = known[stream[:, 0]] & known[host[:, 0]]
        stream_ns, host_ns = (times_ns[pair[:, 0]] + pair[:, 1] for pair in (stream, host))
        s = self.segment
        return self.within_ns + np.maximum(stream_ns[s], host_ns[s] + self.host_lead_ns), ready[s]


def _pairs(values: list[Value]) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1, 2)


def durations_of(trace: RankTrace, roofline: Roofline, kernels: np.ndarray) -> np.ndarray:
    """Durations of the KERNEL records of these indices, int64 ns."""
    peaks = np.array([roofline.tensor_flops[tensor_kind(trace.dtype_name(n))] for n in range(256)])
    part = trace.records[kernels]
    return roofline.durations_ns(part["a"], part["b"], peaks[part["dtype"]], part["flag"])


def compile_program(
    trace: RankTrace, clocks: Clocks, ports: Mapping[int, Port], roofline: Roofline
) -> Program:
    """Adds a rank's values to ``clocks``. ``ports`` by the index of the ISSUE record."""
    dispatch = int(np.floor(roofline.dispatch_ns + 0.5))
    table = trace.records
    kind = table["kind"]
    syncs = np.flatnonzero(np.isin(kind, SYNCHRONISING))
    # host time is that of the host's last wait, and a dispatch for everything issued since: counts from the first record
    issued = np.cumsum((kind == Kind.KERNEL) | (kind == Kind.ISSUE)) * dispatch
    program, spans = _segments(trace, roofline, syncs, issued if dispatch else None)
    points, begins = program.points, program.begins
    part = table[syncs]
    columns = zip(syncs.tolist(), *(part[c].tolist() for c in ("kind", "stream", "flag", "a", "c")), issued[syncs].tolist(), strict=True)
    streams: dict[int, Value] = {}
    caught_up: dict[int, Value] = {}
    """Streams known not to be before this value of the host."""
    events: dict[int, Value] = {}
    works: dict[int, list[Value]] = {}
    host: Value = BEGINNING
    """Less what was dispatched since the first record."""
    at = 0
    for run, (index, what, stream, flag, a, c, spent) in enumerate(columns):
        while at < len(spans) and spans[at][0] == run:
            _operators(clocks, spans[at], streams, host, caught_up if not dispatch else None, begins)
            at += 1
        now = (host[0], host[1] + spent)
        if what == Kind.RECORD:
            events[a] = streams.get(stream, BEGINNING)
            points.add(index, events[a])
        elif what == Kind.WAIT:
            streams[stream] = clocks.later(streams.get(stream, BEGINNING), events.get(a, BEGINNING))
            points.add(index, streams[stream])
        elif what == Kind.ISSUE:
            own = streams.get(stream, BEGINNING) if stream >= 0 else now
            port = ports[index]
            for node in port.ready:
                clocks.feed(node, own)
                if own != now:
                    clocks.feed(node, now)
            works.setdefault(c, []).append(port.end)
            points.add(index, own, now)
        elif what == Kind.STEP:
            points.add(index, clocks.latest((now, *streams.values())))
        elif what == Kind.WORK_WAIT and stream >= 0:
            streams[stream] = clocks.latest((streams.get(stream, BEGINNING), *works.get(c, ())))
            points.add(index, streams[stream])
        else:
            if what == Kind.WORK_WAIT:
                now = clocks.latest((now, *works.get(c, ())))
            elif flag:
                now = clocks.later(now, events.get(a, BEGINNING))
            else:
                now = clocks.later(now, streams.get(stream, BEGINNING))
            host = (now[0], now[1] - spent)
            points.add(index, now)
    for span in spans[at:]:
        _operators(clocks, span, streams, host, caught_up if not dispatch else None, begins)
    return program


Span = tuple[int, int, int, int]
"""A segment: number of synchronisations before it, stream, its duration, and the host's lead at its end."""


def _operators(
    clocks: Clocks, span: Span, streams: dict[int, Value], host: Value, caught_up: dict[int, Value] | None, begins: Timed
) -> None:  # fmt: skip
    _, stream, length, lead = span
    begin = streams.get(stream, BEGINNING)
    begins.add(-1, begin, host)
    after = (begin[0], begin[1] + length)
    if caught_up is None or caught_up.get(stream) != host:
        after = clocks.later(after, (host[0], host[1] + lead + length))
        if caught_up is not None:
            caught_up[stream] = host
    streams[stream] = after


def _segments(
    trace: RankTrace, roofline: Roofline, syncs: np.ndarray, issued: np.ndarray | None
) -> tuple[Program, list[Span]]:
    """The program without its points, and its segments; ``issued``: dispatch time up to each record, None for 0."""
    table = trace.records
    kernels = np.flatnonzero(table["kind"] == Kind.KERNEL)
    runs, stream = np.searchsorted(syncs, kernels), table["stream"][kernels].astype(np.int64)
    order = np.lexsort((stream, runs))  # stable, so in program order on each stream
    kernels, runs, stream = kernels[order], runs[order], stream[order]
    starts = np.ones(len(kernels), bool)
    starts[1:] = (runs[1:] != runs[:-1]) | (stream[1:] != stream[:-1])
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(kernels))[: len(first)] - 1
    segment = np.cumsum(starts) - 1
    durations = durations_of(trace, roofline, kernels)
    through = np.cumsum(durations)
    within = through - (through[first] - durations[first])[segment]
    lead = np.zeros(len(kernels), np.int64)
    if issued is not None:
        lead = issued[kernels] - (within - durations)
        for a, b in zip(first.tolist(), (last + 1).tolist(), strict=True):
            np.maximum.accumulate(lead[a:b], out=lead[a:b])
    spans = zip(*(c.tolist() for c in (runs[first], stream[first], within[last], lead[last])), strict=True)
    return Program(Timed(), kernels, durations, within, lead, segment, Timed()), list(spans)
