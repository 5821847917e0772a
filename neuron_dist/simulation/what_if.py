"""What a run's step would take if one part of the machine were better: replays, one a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from collectives.topology import Cluster
from neuron_dist.simulation.intervals import split, union
from neuron_dist.simulation.prices import recorded_cluster, same_cluster
from neuron_dist.simulation.replay import Replay, replay, step_times
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import Kind, RankTrace

__all__ = ["Row", "step_ns", "what_if", "with_parameters"]

LATENCIES = ("base_ns", "hop_ns", "extra_hop_ns", "switch_ns", "efa_hop_ns")


class Row(NamedTuple):
    """One answer."""

    name: str
    step_ns: float
    """Mean of the steps; the whole run where it has no steps."""


@dataclass(frozen=True)
class _Question:
    name: str
    cluster: Callable[[Cluster], Cluster] = lambda cluster: cluster
    roofline: Callable[[Roofline], Roofline] = lambda roofline: roofline
    contended: bool = True


def with_parameters(cluster: Cluster, **values: float) -> Cluster:
    """The cluster with other assumed or fitted values. Raises KeyError for a name that is not one."""
    unknown = [name for name in values if name not in cluster.parameters]
    if unknown:
        raise KeyError(
            f"{cluster} has no parameter {unknown[0]!r}, only {', '.join(cluster.parameters)}"
        )
    said = ",".join(f"{name}={value}" for name, value in values.items())
    spec = {**cluster.spec, "parameters": {**cluster.parameters, **values}}
    return replace(cluster, spec=spec, digest=f"{cluster.digest},{said}")


def what_if(
    traces: Sequence[RankTrace],
    cluster: Cluster | None = None,
    *,
    factor: float = 2.0,
    contended: bool = True,
) -> list[Row]:
    """The step as replayed, and as it would be with each part of the machine ``factor`` times faster, without
    latencies, without contention, and with no communication left uncovered.

    Schedules stay as they are in the replay, so that a row differs by its one change. Raises what
    :func:`neuron_dist.simulation.replay.replay` raises, ValueError for a ``factor`` that is not above 0.
    """
    if not factor > 0:
        raise ValueError(f"factor is {factor}, expected a number above 0")
    cluster = recorded_cluster(traces[0]) if cluster is None else cluster
    keep = same_cluster(traces[0], cluster)
    base = replay(traces, cluster, contended=contended)
    traces = (
        base.traces if not keep else traces
    )  # on another cluster the choice of algorithms is that of the base, too
    rows = [Row("replayed", step_ns(base))]
    for question in _questions(cluster, factor, contended):
        changed, roofline = question.cluster(cluster), question.roofline(Roofline.of(cluster))
        answer = replay(
            traces, changed, contended=question.contended, roofline=roofline, keep_algorithms=True
        )
        rows.append(Row(question.name, step_ns(answer)))
    rows.append(Row("no exposed communication", _without_exposed(base)))
    return rows


def step_ns(result: Replay) -> float:
    """Mean of the steps; the whole run where it has none."""
    steps = result.steps
    return sum(s.time_ns for s in steps) / len(steps) if steps else float(result.makespan_ns)


def _questions(cluster: Cluster, factor: float, contended: bool) -> list[_Question]:
    def times(name: str) -> Callable[[Cluster], Cluster]:
        return lambda c: with_parameters(c, **{name: c.parameters[name] * factor})

    def no_latency(c: Cluster) -> Cluster:
        return with_parameters(c, **dict.fromkeys(LATENCIES, 0.0))

    by = f"{factor:g} times faster"
    found = [_Question("no contention", contended=False)] if contended else []
    if cluster.spec["network"]["layout"] != "single":
        found.append(_Question(f"NeuronLink {by}", times("link_efficiency"), contended=contended))
    if cluster.instances > 1:
        found.append(_Question(f"EFA {by}", times("efa_efficiency"), contended=contended))
    return [
        *found,
        _Question(f"DMA inside a chip {by}", times("core_Bps"), contended=contended),
        _Question(
            f"compute and HBM {by}", roofline=lambda r: r.faster(factor), contended=contended
        ),
        _Question("no latency of collectives", no_latency, contended=contended),
        _Question(
            "no launch and dispatch",
            roofline=lambda r: replace(r, launch_ns=0.0, dispatch_ns=0.0),
            contended=contended,
        ),
    ]


def _without_exposed(result: Replay) -> float:
    """The longest rank's mean step, or whole run, less its communication that nothing computed beside."""
    ranks = []
    for trace in result.traces:
        steps = step_times([trace])
        if steps:
            ranks.append(sum(s.time_ns - s.exposed_ns for s in steps) / len(steps))
        else:
            parts_of = [trace.of(Kind.KERNEL), trace.of(Kind.COLLECTIVE, Kind.MESSAGE)]
            compute, communication = (union(r["start_ns"], r["end_ns"]) for r in parts_of)
            parts = split(compute, communication, 0, result.makespan_ns)
            ranks.append(float(result.makespan_ns - parts.exposed_ns))
    return max(ranks)
