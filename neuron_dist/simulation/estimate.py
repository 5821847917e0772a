"""The time of a training step from one rank's programs: a formula, beside the clock that runs the program itself.

    step = estimate(job, cluster, Charge.TENSOR)
    job.sequences / step.total_ns * 1e9

What it adds up, for ``m`` micro-batches on ``p`` pipeline stages under 1F1B:

    m * slowest stage + one micro-batch of each other stage + gradients and parameters over data parallel + optimizer

which is ``(m + p - 1) * stage`` where stages are alike, a bubble of ``(p - 1) / (m + p - 1)``. Nothing overlaps: a
tensor-parallel collective stands between the matmuls that need it, and data parallel communicates once, at the end.
Collectives cost what :func:`collectives.plan` says; where groups of the same kind run at once over the same links, the
links are shared. Ranks are placed as NxD does: tensor parallel innermost, then data, then pipeline parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

import numpy as np

from collectives import plan
from collectives.topology import Cluster, ClusterError, topology_of
from neuron_dist.simulation.program import Program
from neuron_dist.simulation.roofline import Roofline, tensor_kind

__all__ = ["Charge", "Job", "Layout", "Stage", "Step", "concurrently_ns", "estimate", "program_ns"]


class Charge(Enum):
    """What an operator costs."""

    TENSOR = "tensor"
    """Flops at TensorE's rate, the half that a causal mask leaves in fused attention; all else is free, as if a
    compiler kept it in SBUF and on the other engines."""
    MATMUL = "matmul"
    """Operators with flops pay the roofline with their operands in HBM, without ``launch_ns``; all else is free."""
    EAGER = "eager"
    """Every operator pays the whole roofline, as the simulated clock charges it."""


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism, and which ranks form which groups."""

    tp: int
    dp: int
    pp: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.pp

    def _places(self) -> np.ndarray:
        return np.arange(self.ranks).reshape(self.pp, self.dp, self.tp)

    @property
    def tensor_groups(self) -> list[tuple[int, ...]]:
        return [tuple(g.tolist()) for g in self._places().reshape(-1, self.tp)]

    @property
    def data_groups(self) -> list[tuple[int, ...]]:
        return [tuple(g.tolist()) for g in self._places().transpose(0, 2, 1).reshape(-1, self.dp)]

    @property
    def pipeline_pairs(self) -> list[tuple[int, ...]]:
        """(sender, receiver) of each activation that goes on to the next stage."""
        places = self._places().reshape(self.pp, -1)
        return [
            (int(a), int(b)) for a, b in zip(places[:-1].ravel(), places[1:].ravel(), strict=True)
        ]


@dataclass(frozen=True)
class Stage:
    """What one micro-batch runs on a rank of one pipeline stage: programs, and how often each."""

    programs: tuple[tuple[Program, int], ...]


@dataclass(frozen=True)
class Job:
    """A training step."""

    layout: Layout
    stages: tuple[Stage, ...]
    """One a pipeline stage."""
    micro_batches: int
    """Of each data-parallel replica."""
    sequences: int
    """Of a step, all replicas."""
    boundary_bytes: int = 0
    """Of the activation that a rank sends to the next stage, and of the gradient that comes back."""
    reduce_bytes: int = 0
    """Gradients of a rank that data parallel reduces, once a step."""
    gather_bytes: int = 0
    """Parameters of a rank that ZeRO-1 gathers after the optimizer's step; 0: gradients are all-reduced instead."""
    optimizer: Program = field(default_factory=Program)
    """The optimizer's step on a rank, operator by operator."""
    optimizer_fused: Program = field(default_factory=Program)
    """The same as one operator."""


@dataclass(frozen=True)
class Step:
    """Where the time of a step goes on a rank of the slowest stage, in simulated nanoseconds."""

    compute_ns: float
    tensor_parallel_ns: float
    pipeline_ns: float
    """Sending activations and gradients between stages."""
    bubble_ns: float
    """Waiting while the pipeline fills and drains."""
    data_parallel_ns: float
    optimizer_ns: float

    @property
    def parts(self) -> dict[str, float]:
        """Nanoseconds by what they are for."""
        return {
            "compute": self.compute_ns,
            "tensor parallel": self.tensor_parallel_ns,
            "pipeline sends": self.pipeline_ns,
            "bubble": self.bubble_ns,
            "data parallel": self.data_parallel_ns,
            "optimizer": self.optimizer_ns,
        }

    @property
    def total_ns(self) -> float:
        return sum(self.parts.values())

    @property
    def dominant(self) -> str:
        """The largest part."""
        return max(self.parts, key=lambda name: self.parts[name])


def program_ns(program: Program, roofline: Roofline, charge: Charge) -> float:
    """Nanoseconds of a program's operators, one after the other; its collectives are not in it."""
    if charge is Charge.EAGER:
        return float(
            sum(roofline.duration_ns(o.flops, o.nbytes, o.dtype) for o in program.operators)
        )
    total = 0.0
    for o in program.operators:
        if o.flops:
            busy = o.flops * 1e9 / roofline.tensor_flops[tensor_kind(o.dtype)]
            if charge is Charge.TENSOR:
                total += busy / 2 if o.causal else busy
            else:
                total += max(busy, o.nbytes * 1e9 / roofline.hbm_Bps)
    return total


def concurrently_ns(
    op: str, nbytes: int, groups: Sequence[tuple[int, ...]], cluster: Cluster
) -> float:
    """Nanoseconds until ``op`` of ``nbytes`` is done in all groups that begin it at once.

    Each group's own price, plus what its busiest link carries for the others: latencies do not add up, bytes do.
    ``send`` takes (sender, receiver) as a group. Groups of one rank take no time.
    """
    return _concurrently_ns(op, int(nbytes), tuple(groups), cluster)


@lru_cache(maxsize=256)
def _concurrently_ns(
    op: str, nbytes: int, groups: tuple[tuple[int, ...], ...], cluster: Cluster
) -> float:
    groups = tuple(g for g in groups if len(g) > 1)
    if not groups:
        return 0.0
    topology = topology_of(cluster)
    busy_ns = np.zeros(len(topology.link_Bps))
    own: list[tuple[float, np.ndarray, float]] = []
    for group in groups:
        price = plan(op, nbytes, group, cluster).price
        first = min(map(cluster.core_of, group)) // cluster.cores_per_instance
        link_ns = np.roll(
            price.bytes_by_link * 1e9 / topology.link_Bps, first * topology.links_per_instance
        )
        busy_ns += link_ns  # a plan is made for the first instance and holds for each
        own.append((price.time_ns, np.flatnonzero(link_ns), float(link_ns.max())))
    return max(
        float(time_ns + busy_ns[links].max(initial=0.0) - alone) for time_ns, links, alone in own
    )


def estimate(job: Job, cluster: Cluster, charge: Charge, roofline: Roofline | None = None) -> Step:
    """How long a step takes on ``cluster``; ``roofline`` replaces that of its cores.

    Raises ValueError where the job does not have one stage a pipeline rank, and
    :class:`collectives.topology.ClusterError` where the cluster has too few cores.
    """
    layout = job.layout
    if len(job.stages) != layout.pp:
        raise ValueError(
            f"the job has {len(job.stages)} stages, expected one for each of pp={layout.pp}"
        )
    if layout.ranks > cluster.cores:
        raise ClusterError(
            f"the job has {layout.ranks} ranks, but {cluster} has {cluster.cores} cores"
        )
    roofline = roofline or Roofline.of(cluster)
    send = (
        concurrently_ns("send", job.boundary_bytes, layout.pipeline_pairs, cluster)
        if layout.pp > 1
        else 0.0
    )
    stages = []
    for stage in job.stages:
        compute = sum(n * program_ns(p, roofline, charge) for p, n in stage.programs)
        exchanged = sum(
            n
            * sum(
                concurrently_ns(x.op, x.nbytes, layout.tensor_groups, cluster) for x in p.exchanges
            )
            for p, n in stage.programs
        )
        stages.append((compute, exchanged, 2 * send))
    slowest = max(stages, key=sum)
    return Step(
        compute_ns=job.micro_batches * slowest[0],
        tensor_parallel_ns=job.micro_batches * slowest[1],
        pipeline_ns=job.micro_batches * slowest[2],
        bubble_ns=sum(map(sum, stages)) - sum(slowest),
        data_parallel_ns=_data_parallel_ns(job, cluster),
        optimizer_ns=float(
            sum(
                roofline.duration_ns(o.flops, o.nbytes, o.dtype)
                for o in (
                    job.optimizer if charge is Charge.EAGER else job.optimizer_fused
                ).operators
            )
        ),
    )


def _data_parallel_ns(job: Job, cluster: Cluster) -> float:
    groups = job.layout.data_groups
    if not job.gather_bytes:
        return concurrently_ns("all_reduce", job.reduce_bytes, groups, cluster)
    return concurrently_ns("reduce_scatter", job.reduce_bytes, groups, cluster) + concurrently_ns(
        "all_gather", job.gather_bytes, groups, cluster
    )
