"""What to change in a recipe that does not fit into HBM."""

from __future__ import annotations

from collections.abc import Sequence

from neuron_dist.titan.check import Plan
from neuron_dist.titan.sizing.memory import Need

__all__ = ["advice"]


def advice(plan: Plan, found: Sequence[Need]) -> list[str]:
    """Changes, the simplest first; those with a number are computed, the others are worth a try."""
    config, at = plan.config, plan.layout
    hbm = plan.cluster.hbm_bytes_per_core
    worst = max(found, key=lambda need: need.peak)
    lines = []
    if type(config.activation_checkpoint).__qualname__.partition(".")[0] != "FullAC":
        lines.append(
            f"activation_checkpoint: full, which keeps a layer's input of {_size(worst.activations)} of activations"
        )
    factor = _factor(worst, hbm)
    if factor is not None:
        key = "parallelism.data_parallel_shard_degree"
        ranks = at.ranks * factor
        instances = -(-ranks // plan.cluster.cores_per_instance)
        lines.append(
            f"{key}: {at.shard * factor} (now {at.shard}), on {ranks} ranks: cluster.instances: {instances}"
        )
        if at.replicate >= factor:
            lines.append(
                f"{key}: {at.shard * factor} and parallelism.data_parallel_replicate_degree: "
                f"{at.replicate // factor}, on the same ranks"
            )
    if config.training.local_batch_size > 1 and at.pipeline == 1:
        lines.append(
            f"training.local_batch_size: {config.training.local_batch_size // 2}, with "
            f"training.global_batch_size: {config.training.local_batch_size * at.data} for the same step"
        )
    heads = _heads(plan)
    if at.tensor < heads:
        lines.append(
            f"parallelism.tensor_parallel_degree: {at.tensor * 2}, for activations and gathered layers of half the size"
        )
    return lines or ["a cluster with more HBM a core, or a smaller training.seq_len"]


def _factor(worst: Need, hbm: int) -> int | None:
    """The power of two by which the shards have to be smaller; None where shards alone do not help."""
    rest = worst.peak - worst.kept
    if rest >= hbm:
        return None
    factor = 2
    while rest + worst.kept // factor > hbm:
        factor *= 2
    return factor


def _heads(plan: Plan) -> int:
    """The most tensor-parallel ranks that the attention allows."""
    attention = getattr(plan.config.model_spec.model, "first_attention", None)
    heads = getattr(attention, "n_heads", 1)
    return int(getattr(attention, "n_kv_heads", None) or heads)


def _size(nbytes: int) -> str:
    from neuron_dist.simulation.units import memory

    return memory(nbytes)
