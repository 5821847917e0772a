"""The axes of TorchTitan's mesh: which ranks form groups, and what they send each other.

Ranks are laid out as TorchTitan does, the last axis innermost: ``pp, dp_replicate, dp_shard, cp, tp``. Experts share the
ranks of the inner three: ``pp, dp_replicate, efsdp, ep``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuron_dist.fidelity.call import Call
from neuron_dist.fidelity.placement import placement
from neuron_dist.fidelity.profile import Profile
from neuron_dist.fidelity.rule import Rule
from neuron_dist.titan.check import Plan

__all__ = ["Axis", "axes", "refused"]


@dataclass(frozen=True)
class Axis:
    """An axis of the mesh that has more than one rank."""

    name: str
    """TorchTitan's."""
    size: int
    groups: tuple[tuple[int, ...], ...]
    """Global ranks of every group, that of rank 0 first."""
    traffic: tuple[tuple[str, str, str], ...]
    """(op, dtype, reduction) of what its groups run, as fidelity rules name them."""
    even: bool = True
    """Whether all ranks send parts of one size."""


def axes(plan: Plan) -> list[Axis]:
    """The axes of a plan, outermost first."""
    at = plan.layout
    config = plan.config
    grid = np.arange(at.ranks).reshape(at.pipeline, at.replicate, at.shard, at.context, at.tensor)
    experts = at.shard * at.context * at.tensor // at.expert
    sparse = grid.reshape(at.pipeline, at.replicate, experts, at.expert)
    whole, small = config.training.mixed_precision_reduce, config.training.mixed_precision_param
    sharded = (("all_gather", small, ""), ("reduce_scatter", whole, "SUM"))
    between = (
        (("all_gather", small, ""), ("reduce_scatter", small, "SUM"))
        if config.parallelism.enable_sequence_parallel
        else (("all_reduce", small, "SUM"),)
    )
    found = [
        _axis("pp", grid, (0,), (("send", small, ""), ("recv", small, ""))),
        _axis("dp_replicate", grid, (1,), (("all_reduce", whole, "SUM"),)),
        _axis("fsdp", grid, (2, 3), sharded),
        _axis("cp", grid, (3,), (("all_gather", small, ""), ("reduce_scatter", small, "SUM"))),
        _axis("tp", grid, (4,), between),
        _axis("loss", grid, (1, 2, 3), (("all_reduce", "int64", "SUM"), ("all_reduce", "float32", "SUM"))),
    ]  # fmt: skip
    if at.expert > 1:
        exchange = (("all_to_all", small, ""), ("all_to_all", "int64", ""))
        found += [
            _axis("efsdp", sparse, (2,), sharded),
            _axis("ep", sparse, (3,), exchange, even=False),
        ]
    return [axis for axis in found if axis.size > 1]


def refused(plan: Plan, profile: Profile) -> list[tuple[str, Rule, str]]:
    """(axes that it concerns, rule, report of one call) for what the real TorchNeuron would refuse of a plan's
    collectives; axes of one size together.

    Only what the layout shows is judged: the groups, and the operations that TorchTitan runs on each axis.
    """
    found: dict[tuple[str, int], tuple[list[str], Rule, str]] = {}
    for axis in axes(plan):
        for call in _calls(axis, plan):
            for rule, text in profile.found(call):
                seen = found.setdefault((rule.id, axis.size), ([], rule, text))
                if axis.name not in seen[0]:
                    seen[0].append(axis.name)
    return [(", ".join(names), rule, text) for names, rule, text in found.values()]


def _axis(
    name: str,
    grid: Any,
    dims: tuple[int, ...],
    traffic: Iterable[tuple[str, str, str]],
    even: bool = True,
) -> Axis:
    moved = np.moveaxis(grid, dims, range(-len(dims), 0))
    size = int(np.prod([grid.shape[d] for d in dims]))
    groups = tuple(tuple(map(int, group)) for group in moved.reshape(-1, size))
    return Axis(name, size, groups, tuple(traffic), even)


def _calls(axis: Axis, plan: Plan) -> Iterable[Call]:
    """One call for each operation of an axis and each shape that its groups have on the cluster."""
    shapes: dict[Any, tuple[int, ...]] = {}
    for group in axis.groups:
        shapes.setdefault(placement(group, plan.cluster), group)
    for group in shapes.values():
        yield Call(op="new_group", group_ranks=group, world_size=plan.layout.ranks)
        for op, dtype, reduction in axis.traffic:
            yield Call(
                op=op,
                group_ranks=group,
                world_size=plan.layout.ranks,
                reduction=reduction,
                dtype=dtype,
                even=axis.even or dtype == "int64",
                explicit_splits=not axis.even and dtype != "int64",
            )
