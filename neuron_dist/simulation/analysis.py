"""What a run did, from the traces of its ranks: every number that the report shows. All times are simulated.

Means are over the counted steps: all but the first, which also does what is done once, where there are more than one;
or the one step that is asked for. A run that marked no step counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectives.bandwidth import busbw_factor
from collectives.topology import Cluster
from neuron_dist.simulation.busy import Busy, busy_of, intersect
from neuron_dist.simulation.figures import WHOLE_RUN, RankStep, RunFigures, Traffic
from neuron_dist.simulation.hbm import Hbm, hbm_of
from neuron_dist.simulation.intervals import overlap, union
from neuron_dist.simulation.kernels import KernelRow, kernel_rows
from neuron_dist.simulation.links import LinkUse, link_use
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.run_header import cluster_note, cluster_of
from neuron_dist.simulation.steps import in_step, in_steps, rank_steps, windows_of
from neuron_dist.simulation.trace import RankTrace, TraceError
from neuron_dist.simulation.transfers import Operations, operations_of

__all__ = ["Analysis", "AxisRow", "CollectiveRow", "RankRow", "Site", "analyse"]


@dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one op and algorithm in the groups of one label and size, or messages between their ranks."""

    op: str
    algorithm: str
    label: str
    size: int
    """Ranks of a group; 2 for messages."""
    groups: int
    """Groups that took part; for messages pairs of sender and receiver."""
    count: int
    """In the counted steps, of all groups together; like the next two."""
    nbytes: int
    time_ns: int
    steps: int

    @property
    def calls(self) -> float:
        """A step, of one group."""
        return self.count / self.groups / self.steps

    @property
    def step_ns(self) -> float:
        """Time a step, of one group."""
        return self.time_ns / self.groups / self.steps

    @property
    def algbw_Bps(self) -> float | None:
        """Bytes per second as nccom-test counts them; None where there was no time."""
        return self.nbytes / (self.time_ns * 1e-9) if self.time_ns else None

    @property
    def busbw_Bps(self) -> float | None:
        """None for an op that nccom-test does not have."""
        factor, algbw = busbw_factor(self.op, self.size), self.algbw_Bps
        return None if factor is None or algbw is None else algbw * factor


@dataclass(frozen=True)
class AxisRow:
    """All communication of one mesh axis, that is of the groups of one label."""

    label: str
    size: int
    groups: int
    count: float
    """Calls of a rank in a step, like the next three means over the ranks of the axis."""
    nbytes: float
    busy_ns: float
    """Communicating on this axis."""
    exposed_ns: float
    """The part of it that nothing computed beside."""


@dataclass(frozen=True)
class RankRow:
    """One rank, means over the counted steps."""

    rank: int
    span_ns: float
    compute_ns: float
    exposed_ns: float
    overlapped_ns: float
    idle_ns: float
    early_ns: float
    """From when it was ready for its collectives to the last rank's arrival, added up; it may compute meanwhile."""
    peak_bytes: int


@dataclass(frozen=True)
class Site:
    """A fidelity report: what the real TorchNeuron would not do."""

    rule: str
    site: str
    message: str
    count: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Analysis:
    """Everything that is read of a run; built by :func:`analyse`."""

    traces: Sequence[RankTrace]
    figures: RunFigures
    busy: list[Busy]
    """By rank, over the whole run."""
    operations: Operations
    collectives: list[CollectiveRow]
    """By falling time."""
    axes: list[AxisRow]
    kernels: list[KernelRow]
    ranks: list[RankRow]
    critical_rank: int
    """The rank that was least early at collectives: the others wait for it."""
    links: LinkUse
    hbm: Hbm
    sites: list[Site]
    notes: list[str]
    """What a reader of the numbers must know of them."""

    @property
    def cluster(self) -> Cluster:
        return self.figures.cluster


def analyse(traces: Sequence[RankTrace], step: int | None = None) -> Analysis:
    """The numbers of a run, or of its one ``step``.

    Raises :class:`TraceError` where there is no such step or the cluster cannot be loaded, and
    :class:`collectives.schedule.ScheduleError` for an op that the planner does not have.
    """
    cluster = cluster_of(traces)
    notes = [note] if (note := cluster_note(traces, cluster)) else []
    busy = [busy_of(trace) for trace in traces]
    steps = rank_steps(traces, busy, notes)
    base = RunFigures(
        cluster=cluster,
        world_size=len(traces),
        ranks=tuple(steps),
        traffic=(),
        traffic_ns=0,
        traffic_steps=0,
        hbm_bytes=int(traces[0].header["hbm_bytes"]),
        trace=str(traces[0].path.parent),
        only=step,
    )
    if step is not None and step not in base.steps:
        have = f"{min(base.steps)} to {max(base.steps)}" if WHOLE_RUN not in base.steps else "none"
        raise TraceError(
            f"{base.trace}: there is no step {step}, expected one of the steps that all ranks ended: {have}"
        )
    windows = windows_of(base)
    operations = operations_of(traces)
    parts = operations.rows[in_steps(operations.rows, windows)]
    sites = _sites(traces)
    figures = replace(
        base,
        traffic=tuple(_traffic(operations, parts)),
        traffic_ns=sum(base.steps[s].step_ns for s in base.counted),
        traffic_steps=len(base.counted),
        reports=sum(s.count for s in sites),
        sites=len(sites),
    )
    links = link_use(figures)
    if links.unknown:
        notes.append(
            f"the links of {', '.join(links.unknown)} are left out: registered in the program, not here"
        )
    ranks = _ranks(figures, parts)
    return Analysis(
        traces=traces,
        figures=figures,
        busy=busy,
        operations=operations,
        collectives=_collectives(figures.traffic, len(base.counted)),
        axes=_axes(figures, operations, parts, busy, windows),
        kernels=kernel_rows(
            traces, lambda t, k: in_step(k["start_ns"], windows[t.rank]), Roofline.of(cluster)
        ),
        ranks=ranks,
        critical_rank=_critical(ranks),
        links=links,
        hbm=hbm_of(traces),
        sites=sites,
        notes=notes,
    )


def _traffic(operations: Operations, parts: np.ndarray) -> list[Traffic]:
    """What each group, or pair of ranks, moved."""
    sums: dict[tuple, list[int]] = {}
    first = parts[parts["first"]]
    columns = [
        first[name].tolist() for name in ("team", "op", "algorithm", "message", "rank", "root")
    ]
    spans = (first["end_ns"] - first["start_ns"]).tolist()
    for *key, nbytes, ns in zip(*columns, first["nbytes"].tolist(), spans, strict=True):
        team, op, algorithm, message, rank, root = key
        one = sums.setdefault(
            (team, op, algorithm, message, rank if message else -1, root), [0, 0, 0]
        )
        one[0] += 1
        one[1] += nbytes
        one[2] += ns
    found = []
    for (team, op, algorithm, message, rank, root), totals in sums.items():
        ranks, name = operations.teams[team].ranks, operations.names[op]
        if message:
            pair = (rank, ranks[root]) if name == "send" else (ranks[root], rank)
            ranks, name, root = pair, "send", 0
        found.append(
            Traffic(
                ranks,
                operations.teams[team].label,
                name,
                operations.names[algorithm],
                max(root, 0),
                *totals,
            )
        )
    return found


def _collectives(traffic: Sequence[Traffic], steps: int) -> list[CollectiveRow]:
    sums: dict[tuple[str, str, str, int], list[int]] = {}
    groups: dict[tuple[str, str, str, int], set[tuple[int, ...]]] = {}
    for t in traffic:
        key = (t.op, t.algorithm, t.label, len(t.ranks))
        totals = sums.setdefault(key, [0, 0, 0])
        for i, value in enumerate((t.count, t.nbytes, t.time_ns)):
            totals[i] += value
        groups.setdefault(key, set()).add(t.ranks)
    rows = [
        CollectiveRow(*key, len(groups[key]), count, nbytes, time_ns, steps)
        for key, (count, nbytes, time_ns) in sums.items()
    ]
    return sorted(rows, key=lambda r: (-r.step_ns, r.op, r.label, r.algorithm))


def _axes(
    figures: RunFigures,
    operations: Operations,
    parts: np.ndarray,
    busy: Sequence[Busy],
    windows: dict[int, np.ndarray],
) -> list[AxisRow]:
    keys = [(team.label, len(team.ranks)) for team in operations.teams]
    labels = list(dict.fromkeys(keys))
    axis_of = np.array([labels.index(key) for key in keys] or [0])[parts["team"]]
    computing = {r: intersect(busy[r].compute, w) for r, w in windows.items()}
    rows = []
    for index, (label, size) in enumerate(labels):
        own = parts[axis_of == index]
        ranks = np.unique(own["rank"]).tolist()
        if not ranks:
            continue
        moved, exposed = 0, 0
        for rank in ranks:
            mine = own[own["rank"] == rank]
            spans = union(mine["start_ns"], mine["end_ns"])
            inside = overlap(spans, windows[rank])
            moved += inside
            exposed += inside - overlap(spans, computing[rank])
        each = len(ranks) * len(figures.counted)
        teams = len(np.unique(own["team"]))
        totals = (len(own), int(own["nbytes"].sum()), moved, exposed)
        rows.append(AxisRow(label, size, teams, *(t / each for t in totals)))
    return sorted(rows, key=lambda r: (-r.busy_ns, r.label))


def _ranks(figures: RunFigures, parts: np.ndarray) -> list[RankRow]:
    collectives = parts[~parts["message"]]
    early = np.zeros(figures.world_size, np.int64)
    if len(collectives):
        last = np.full(int(collectives["instance"].max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(last, collectives["instance"], collectives["ready_ns"])
        np.add.at(
            early, collectives["rank"], last[collectives["instance"]] - collectives["ready_ns"]
        )
    counted, rows = set(figures.counted), []
    by_rank: dict[int, list[RankStep]] = {}
    for step in figures.ranks:
        if step.step in counted:
            by_rank.setdefault(step.rank, []).append(step)
    for rank, steps in sorted(by_rank.items()):
        n = len(steps)
        rows.append(
            RankRow(
                rank=rank,
                span_ns=sum(s.span_ns for s in steps) / n,
                compute_ns=sum(s.compute_ns for s in steps) / n,
                exposed_ns=sum(s.exposed_ns for s in steps) / n,
                overlapped_ns=sum(s.overlapped_ns for s in steps) / n,
                idle_ns=sum(s.idle_ns for s in steps) / n,
                early_ns=int(early[rank]) / n,
                peak_bytes=max(s.peak_bytes for s in steps),
            )
        )
    return rows


def _critical(ranks: Sequence[RankRow]) -> int:
    """Of ranks that were early alike, the one that computed longest."""
    return min(ranks, key=lambda r: (r.early_ns, -r.compute_ns)).rank


def _sites(traces: Sequence[RankTrace]) -> list[Site]:
    """Fidelity reports by rule and site. A rank's last word on one counts: it may repeat it with a new count."""
    counts: dict[tuple[str, str, str], dict[int, int]] = {}
    for trace in traces:
        for site in trace.sites:
            key = (str(site["rule"]), str(site["site"]), str(site["message"]))
            counts.setdefault(key, {})[trace.rank] = int(site["count"])
    found = [Site(*key, sum(by.values()), tuple(sorted(by))) for key, by in counts.items()]
    return sorted(found, key=lambda s: (-s.count, s.rule, s.site))
