"""A recorded run once more, in simulated time: on links that its groups share, or on another cluster.

The native clock lets every collective take the time that it would take alone. The replay executes what all ranks
recorded, in their program order and with that clock's rules, and settles contention: transfers of all groups that are
under way at once share the links of the cluster (:mod:`neuron_dist.simulation.flows`). Without contention, on the
cluster of the run, it gives the recorded times to the nanosecond.

    operations.py   collectives and messages, put together from their ranks
    prices.py       what each costs alone, and needs of the links
    rank_clock.py   a rank's records as clock values; wiring.py the operations'
    clocks.py       the graph of these values, evaluated as they become known
    flows.py        transfers that share links
    retime.py       the trace at the new times

An operation spends the latency of its schedule without using links, then its transfer at a speed of 1 or less. What
ranks do meanwhile goes on as the program says: a collective waits for the last of its ranks, streams for what they
wait for, so a delay spreads or is hidden as it would be on the machine. The end of a message's use of its *channel*
is by its uncontended time where it waits for its receiver, as online.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectives.topology import Cluster, ClusterError, Topology
from neuron_dist.simulation.clocks import Clocks, Run, Value
from neuron_dist.simulation.flows import Flows
from neuron_dist.simulation.operations import collect
from neuron_dist.simulation.prices import Prices, recorded_cluster, same_cluster
from neuron_dist.simulation.rank_clock import RankClock, compile_rank
from neuron_dist.simulation.retime import Note, retimed
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import Kind, RankTrace, TraceError
from neuron_dist.simulation.unfinished import Unfinished, find_unfinished
from neuron_dist.simulation.wiring import Wiring

__all__ = ["Outcome", "Replay", "StepTime", "Unfinished", "replay", "step_times"]


@dataclass(frozen=True)
class Outcome:
    """How a collective or message went in the replay."""

    op: str
    group: str
    """The label of its process group."""
    number: int
    ranks: tuple[int, ...]
    """Global ranks; of messages sender and receiver."""
    algorithm: str
    nbytes: int
    start_ns: int
    """The last arrival, or when the group was free again."""
    end_ns: int
    alone_ns: int
    """What it takes where nothing shares its links."""

    @property
    def time_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def slowdown(self) -> float:
        """1.0: as alone."""
        return self.time_ns / self.alone_ns if self.alone_ns else 1.0


@dataclass(frozen=True)
class StepTime:
    """A training step over all ranks: from the last rank's end of the step before to the last rank's end."""

    step: int
    time_ns: int
    compute_ns: float
    """This and the next: means over the ranks."""
    exposed_ns: float
    overlapped_ns: float


@dataclass
class Replay:
    """What came out."""

    traces: list[RankTrace]
    """By rank, at the new times."""
    cluster: Cluster
    topology: Topology
    """Of ``cluster``: names and bandwidths of the links."""
    contended: bool
    outcomes: list[Outcome]
    """Collectives by group and number, then messages."""
    link_bytes: np.ndarray
    """[links] bytes over each directed link."""
    link_busy_ns: np.ndarray
    """[links] time that these bytes take at the link's bandwidth."""
    link_lost_ns: np.ndarray
    """[links] time that transfers lost because the link was shared; where several links held one up, each its part."""
    unfinished: list[Unfinished] = field(default_factory=list)
    """Ranks that could not go to the end of their trace."""
    notes: list[str] = field(default_factory=list)
    """What could not be done as recorded."""

    @property
    def makespan_ns(self) -> int:
        """The latest time of any record."""
        return max((int(t.records["end_ns"].max(initial=0)) for t in self.traces), default=0)

    @property
    def hot_link(self) -> str:
        """The link that is busy longest; '' if nothing moved."""
        return (
            self.topology.link_names[int(self.link_busy_ns.argmax())]
            if self.link_busy_ns.any()
            else ""
        )

    @property
    def steps(self) -> list[StepTime]:
        return step_times(self.traces)


def step_times(traces: Sequence[RankTrace]) -> list[StepTime]:
    """The training steps that all of these ranks ended, in order."""
    ended: dict[int, list[np.void]] = {}
    for trace in traces:
        for record in trace.of(Kind.STEP):
            ended.setdefault(int(record["a"]), []).append(record)
    found, before_ns = [], 0
    for step in sorted(s for s, records in ended.items() if len(records) == len(traces)):
        end_ns = max(int(r["end_ns"]) for r in ended[step])
        means = (float(np.mean([int(r[c]) for r in ended[step]])) for c in "bcd")
        found.append(StepTime(step, end_ns - before_ns, *means))
        before_ns = end_ns
    return found


def replay(
    traces: Sequence[RankTrace],
    cluster: Cluster | None = None,
    *,
    contended: bool = True,
    roofline: Roofline | None = None,
    keep_algorithms: bool | None = None,
) -> Replay:
    """Replays the ``traces`` of a run's ranks on ``cluster`` (the recorded one).

    ``contended``: groups share links; else each collective takes its own time, as online. ``roofline``: that of the
    operators (the cluster's). ``keep_algorithms``: price the algorithms that the run used; unless given only on the
    recorded cluster, while on another one they are chosen anew.

    Raises :class:`TraceError` for traces that contradict one another, :class:`ClusterError` where the recorded cluster
    cannot be built or the cluster has no core for a rank, and :class:`collectives.schedule.ScheduleError` for an
    operation that the planner does not know.
    """
    if not traces:
        raise TraceError("no traces to replay, expected those of a run's ranks")
    traces = sorted(traces, key=lambda t: t.rank)
    cluster = recorded_cluster(traces[0]) if cluster is None else cluster
    _check_cores(cluster, traces)
    recorded = same_cluster(traces[0], cluster)
    roofline = Roofline.of(cluster) if roofline is None else roofline
    prices = Prices(
        cluster, roofline, keep_algorithms=recorded if keep_algorithms is None else keep_algorithms
    )
    clocks = Clocks()
    wiring = Wiring(collect(traces), len(traces), clocks, prices, contended=contended)
    ranks = [
        compile_rank(t, clocks, p, roofline) for t, p in zip(traces, wiring.ports, strict=True)
    ]
    run = Run(clocks, wiring.by_start)
    flows = Flows(len(prices.topology.link_Bps))
    _simulate(run, wiring, flows)
    return _result(traces, cluster, prices, wiring, ranks, run, flows, _header(traces[0], cluster))


def _check_cores(cluster: Cluster, traces: Sequence[RankTrace]) -> None:
    last = max(t.rank for t in traces)
    try:
        cluster.core_of(last)
    except ClusterError as error:
        need = last // cluster.cores_per_instance + 1
        raise ClusterError(
            f"{error}; {need} instances have one for each of the run's ranks"
        ) from None


def _header(trace: RankTrace, cluster: Cluster) -> dict[str, Any]:
    """What the headers of retimed traces say else than the recorded ones: another cluster."""
    if same_cluster(trace, cluster) and trace.header["cluster"]["instances"] == cluster.instances:
        return {}
    described = {
        "product": cluster.product, "instances": cluster.instances, "lnc": cluster.lnc, "digest": cluster.digest,
        "name": str(cluster),
    }  # fmt: skip
    return {"cluster": described, "hbm_bytes": cluster.hbm_bytes_per_core}


def _simulate(run: Run, wiring: Wiring, flows: Flows) -> None:
    """Lets the network decide when transfers end, in the order of time, until nothing is under way."""
    events: list[tuple[int, int, bool]] = []
    """(time, operation, whether its transfer ends; else it begins)."""

    def schedule() -> None:
        for node in run.settled():
            number = wiring.by_start[node]
            heapq.heappush(
                events, (run.times[node] + wiring.operations[number].cost.latency_ns, number, False)
            )

    # All that does not wait for a transfer is known by now, so nothing can begin before the next event: it is safe to go there.
    schedule()
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, number, ends = heapq.heappop(events)
            wired = wiring.operations[number]
            if not ends:
                assert wired.cost.demand is not None
                flows.begin(now, number, wired.cost.demand, wired.cost.transfer_ns)
            elif flows.ends(now, number):
                flows.end(now, number)
                assert wired.held is not None
                run.release(wired.held, now)
                schedule()
        for end_ns, number in flows.settle(now):
            heapq.heappush(events, (end_ns, number, True))


def _result(
    traces: Sequence[RankTrace], cluster: Cluster, prices: Prices, wiring: Wiring, ranks: Sequence[RankClock], run: Run,
    flows: Flows, header: Mapping[str, Any],
) -> Replay:  # fmt: skip
    times_ns, known = np.array(run.times, np.int64), run.known()
    link_bytes = np.zeros(len(prices.topology.link_Bps), np.int64)
    notes: list[list[Note]] = [[] for _ in traces]
    outcomes = []

    def at(value: Value) -> int:
        return run.times[value[0]] + value[1]

    for wired in wiring.operations:
        operation, cost = wired.operation, wired.cost
        for (position, index), receiver in operation.noted:
            start, end = wired.received if receiver else (wired.start, wired.end)
            if known[start[0]] and known[end[0]]:
                algorithm = cost.algorithm if operation.channel is None else ""
                notes[position].append(Note(index, at(start), at(end), algorithm))
        if known[wired.end[0]]:
            outcomes.append(
                Outcome(
                    op=operation.op,
                    group=operation.team.label,
                    number=operation.number,
                    ranks=operation.ranks,
                    algorithm=cost.algorithm,
                    nbytes=operation.nbytes,
                    start_ns=at(wired.start),
                    end_ns=at(wired.end),
                    alone_ns=cost.total_ns,
                )
            )
            links, carried = cost.link_bytes
            link_bytes[links] += carried
    return Replay(
        traces=[
            retimed(*each, times_ns, known, header)
            for each in zip(traces, ranks, notes, strict=True)
        ],
        cluster=cluster,
        topology=prices.topology,
        contended=wiring.contended,
        outcomes=outcomes,
        link_bytes=link_bytes,
        link_busy_ns=link_bytes / prices.topology.link_Bps * 1e9,
        link_lost_ns=flows.lost_ns,
        unfinished=find_unfinished(traces, ranks, wiring, times_ns, known),
        notes=list(prices.notes),
    )
