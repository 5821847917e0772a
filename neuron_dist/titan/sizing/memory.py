"""The memory of every rank: what is kept for the whole step, and the peaks of forward, backward and the optimizer.

Parameters, gradients and optimizer states are exact: each rank's own shards, as TorchTitan cuts them. The rest is an
estimate from one pass over a short stand-in of each stage, grown by what each further layer keeps:

    backward    parameters + optimizer + activations of all micro-batches under way + what the last layer needs
    end         parameters + optimizer + gradients + what the first layer needs
    optimizer   parameters + optimizer + gradients + what its step needs

A rank needs the largest of these. Equal ranks are told once: the ranks of one pipeline rank hold shards of one size, of
which the first are the largest where they are not equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuron_dist.titan.check import Plan
from neuron_dist.titan.sizing.schedule import in_flight, stages_of_rank
from neuron_dist.titan.sizing.stages import Stage, stages_of
from neuron_dist.titan.sizing.trace import Held, Trace, Tracer

__all__ = ["Need", "needs"]


@dataclass(frozen=True)
class Need:
    """What one pipeline rank needs, in bytes of HBM."""

    pipeline_rank: int
    ranks: range
    """Global ranks that need it."""
    stages: tuple[int, ...]
    layers: int
    micro_batches: int
    """Most that are under way at once, of all its stages together."""
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    """Between forward and backward, of all micro-batches under way; parameters that FSDP has gathered among them."""
    peak: int

    @property
    def kept(self) -> int:
        """Exact: parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer


def needs(plan: Plan, attention: str = "fused") -> list[Need]:
    """What each pipeline rank of a plan needs, in order, with one of :data:`.trace.ATTENTION`.

    Raises RuntimeError in a process that has a process group, and :class:`RecipeError` where TorchTitan cannot lay the
    model out so.
    """
    stages = stages_of(plan.config, plan.layout)
    with Tracer(plan, attention) as tracer:
        traces = [tracer.trace(stage) for stage in stages]
    return [_need(plan, rank, stages, traces) for rank in range(plan.layout.pipeline)]


def _need(plan: Plan, rank: int, stages: Sequence[Stage], traces: Sequence[Trace]) -> Need:
    layout = plan.layout
    count = _micro_batches(plan)
    if layout.pipeline > 1:
        mine = stages_of_rank(rank, layout.pipeline, layout.schedule, len(stages))
        moments = in_flight(rank, layout.pipeline, layout.schedule, len(stages), count)
    else:
        mine, moments = (0,), [{0: 1}]
    wholes = {index: _whole(stages[index], traces[index]) for index in mine}
    total = sum(wholes.values(), Held())
    # Gradients that are there while activations are: of micro-batches that ran backward before.
    earlier = 0
    if layout.pipeline > 1:
        earlier = total.accumulated if count > 1 else 0
    elif _accumulates(plan):
        earlier = total.gradients
    base = total.parameters + total.optimizer
    most = max(sum(wholes[i].activations * n for i, n in moment.items()) for moment in moments)
    kept = total.unsharded + earlier + most
    working = max(_working(traces[index]) for index in mine)
    ending = max(_ending(traces[index]) for index in mine)
    peak = max(
        base + kept + working,
        base + total.gradients + (total.unsharded if layout.pipeline > 1 else 0) + ending,
        base + total.gradients + _optimizer_needs(plan.config, total),
    )
    per_rank = layout.ranks // layout.pipeline
    return Need(
        pipeline_rank=rank,
        ranks=range(rank * per_rank, (rank + 1) * per_rank),
        stages=tuple(mine),
        layers=sum(stages[index].layers.total() for index in mine),
        micro_batches=max(sum(moment.values()) for moment in moments),
        parameters=total.parameters,
        gradients=total.gradients,
        optimizer=total.optimizer,
        activations=kept,
        peak=peak,
    )


def _whole(stage: Stage, trace: Trace) -> Held:
    """What all of a stage holds: its sample, and the layers that the sample leaves out."""
    held = trace.held
    for kind, count in stage.layers.items():
        held = held + trace.layers[kind] * (count - stage.sample.kinds.count(kind))
    return held


def _working(trace: Trace) -> int:
    """The peak until the last layer has run backward, beyond what the sample keeps."""
    held = trace.held
    return max(0, trace.backward_peak - held.parameters - held.unsharded - held.activations)


def _ending(trace: Trace) -> int:
    """The peak after that, beyond parameters and gradients."""
    return max(0, trace.end_peak - trace.held.parameters - trace.held.gradients)


def _micro_batches(plan: Plan) -> int:
    return (
        plan.config.training.local_batch_size
        // plan.config.parallelism.pipeline_parallel_microbatch_size
    )


def _accumulates(plan: Plan) -> bool:
    training = plan.config.training
    return training.global_batch_size > training.local_batch_size * plan.layout.data


def _optimizer_needs(config: Any, total: Held) -> int:
    """The foreach implementation holds the root of every second moment at once; the others none of any size."""
    return total.gradients if config.optimizer.implementation == "foreach" else 0
