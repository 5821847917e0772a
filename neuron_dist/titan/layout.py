"""Whether a ``Trainer.Config`` can be laid out on so many ranks, and whether what it asks for fits together.

Each check is a generator of ``(key, value, expected)``; all of them run, so that a recipe is mended in one go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from neuron_dist.titan.problems import MISSING, nearest

__all__ = ["DEGREES", "Finding", "Layout", "check_layout", "layout_of"]

Finding = tuple[str, object, str]
"""Key path, its value, and what was expected."""

_P = "parallelism."
_MASK_BLOCK = 128
"""Block size of the masks that torch's context parallelism makes."""
DEGREES = {
    "data_parallel_replicate_degree": "replicate",
    "data_parallel_shard_degree": "shard",
    "context_parallel_degree": "context",
    "tensor_parallel_degree": "tensor",
    "pipeline_parallel_degree": "pipeline",
}
"""TorchTitan's degree -> our short name for it. Expert parallelism shares the ranks of three of them."""


@dataclass(frozen=True)
class Layout:
    """The degrees of a run, with -1 resolved."""

    ranks: int
    replicate: int
    shard: int
    context: int
    tensor: int
    pipeline: int
    expert: int
    schedule: str

    @property
    def data(self) -> int:
        """Ranks that read different data."""
        return self.replicate * self.shard

    @property
    def metrics_rank(self) -> int:
        """The rank on which the loss is known: the first of the last pipeline stage, which V-shaped schedules have on
        the first rank. (TorchTitan 0.3.0 takes DualPipeV for another, and logs a loss of -1.)"""
        if self.pipeline == 1 or self.schedule in ("ZBVZeroBubble", "DualPipeV"):
            return 0
        return self.ranks // self.pipeline * (self.pipeline - 1)

    def __str__(self) -> str:
        names = ("replicate", "shard", "context", "tensor", "pipeline", "expert")
        used = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name) > 1]
        return " x ".join(used) or "one rank"


def layout_of(config: Any, ranks: int) -> Layout:
    """The degrees of ``config`` on ``ranks`` ranks; meaningful only where :func:`check_layout` finds nothing."""
    degrees = _degrees(config)
    if degrees["shard"] == -1:
        rest = math.prod(v for k, v in degrees.items() if k != "shard")
        degrees["shard"] = max(1, ranks // max(1, rest))
    parallelism = config.parallelism
    return Layout(
        ranks=ranks,
        expert=parallelism.expert_parallel_degree,
        schedule=parallelism.pipeline_parallel_schedule,
        **degrees,
    )


def check_layout(config: Any, ranks: int) -> Iterator[Finding]:
    """All that is wrong with ``config`` on ``ranks`` ranks."""
    bad = [*_sizes(config), *_positive_degrees(config)]
    yield from bad
    if bad:
        return
    bad = list(_product(config, ranks))
    yield from bad
    layout = layout_of(config, ranks)
    yield from _heads(config, layout)
    yield from _sequence(config, layout)
    yield from _experts(config, layout)
    yield from _pipeline(config, layout)
    yield from _checkpoint(config, layout)
    if not bad:
        yield from _batch(config, layout)


def _degrees(config: Any) -> dict[str, int]:
    return {short: getattr(config.parallelism, name) for name, short in DEGREES.items()}


def _sizes(config: Any) -> Iterator[Finding]:
    for name in ("local_batch_size", "seq_len", "steps"):
        value = getattr(config.training, name)
        if value < 1:
            yield f"training.{name}", value, "expected 1 or more"
    if config.training.global_batch_size < 1 and config.training.global_batch_size != -1:
        yield (
            "training.global_batch_size",
            config.training.global_batch_size,
            "expected 1 or more, or -1",
        )
    if config.metrics.log_freq < 1:
        yield "metrics.log_freq", config.metrics.log_freq, "expected 1 or more"


def _positive_degrees(config: Any) -> Iterator[Finding]:
    for name in (*DEGREES, "expert_parallel_degree"):
        value = getattr(config.parallelism, name)
        if name == "data_parallel_shard_degree":
            if value < 1 and value != -1:
                yield _P + name, value, "expected 1 or more, or -1 for all ranks that are left"
        elif value < 1:
            yield _P + name, value, "expected 1 or more"


def _product(config: Any, ranks: int) -> Iterator[Finding]:
    degrees = _degrees(config)
    fixed = math.prod(v for v in degrees.values() if v != -1)
    shown = (
        " x ".join(f"{name} {value}" for name, value in degrees.items() if value > 1)
        or "all degrees 1"
    )
    largest = max(
        (n for n in reversed(DEGREES) if degrees[DEGREES[n]] != -1),
        key=lambda n: degrees[DEGREES[n]],
    )
    value = degrees[DEGREES[largest]]
    rest = fixed // value
    fits = f"; with the others as they are it would be {ranks // rest}" if ranks % rest == 0 else ""
    if degrees["shard"] == -1:
        if ranks % fixed:
            yield _P + largest, value, f"the degrees ({shown}) do not divide {ranks} ranks"
    elif fixed != ranks:
        yield (
            _P + largest,
            value,
            f"the degrees ({shown}) multiply to {fixed}, expected {ranks}, the number of ranks{fits}",
        )


def _heads(config: Any, layout: Layout) -> Iterator[Finding]:
    if layout.tensor == 1:
        return
    seen = set()
    for index, layer in enumerate(getattr(config.model_spec.model, "layers", [])):
        attention = getattr(layer, "attention", None)
        heads = getattr(attention, "n_heads", None)
        if heads is None:
            continue
        kv_heads = getattr(attention, "n_kv_heads", None) or heads
        for count, what in ((heads, "attention heads"), (kv_heads, "key-value heads")):
            if count % layout.tensor and (count, what) not in seen:
                seen.add((count, what))
                fits = ", ".join(str(d) for d in range(1, count + 1) if count % d == 0)
                yield (
                    _P + "tensor_parallel_degree",
                    layout.tensor,
                    f"does not divide the {count} {what} of layer {index}; expected one of {fits}",
                )


def _sequence(config: Any, layout: Layout) -> Iterator[Finding]:
    seq_len = config.training.seq_len
    factors = {
        "tensor_parallel_degree": layout.tensor
        if config.parallelism.enable_sequence_parallel
        else 1
    }
    if layout.context > 1:
        # torch shards a block mask in whole blocks; without one, TorchTitan pairs head with tail.
        block = _MASK_BLOCK if _has_flex(config) else 2
        factors |= {f"{block} x context_parallel_degree": block * layout.context}
    multiple = math.lcm(*factors.values()) if _has_flex(config) else math.prod(factors.values())
    if seq_len % multiple:
        near = max(1, round(seq_len / multiple)) * multiple
        why = ", ".join(name for name, factor in factors.items() if factor > 1)
        yield (
            "training.seq_len",
            seq_len,
            f"expected a multiple of {multiple} ({why}), such as {near}",
        )
    try:
        longest = config.model_spec.model.max_seq_len
    except (AttributeError, ValueError):
        return
    if seq_len > longest:
        yield (
            "training.seq_len",
            seq_len,
            f"expected at most {longest}, the model's longest sequence",
        )


def _has_flex(config: Any) -> bool:
    from torchtitan.models.common.attention import FlexAttention

    return any(True for _ in config.model_spec.traverse(FlexAttention.Config))


def _experts(config: Any, layout: Layout) -> Iterator[Finding]:
    if layout.expert == 1:
        return
    key = _P + "expert_parallel_degree"
    inner = layout.shard * layout.context * layout.tensor
    if inner % layout.expert:
        yield key, layout.expert, f"does not divide shard x context x tensor = {inner}"
    for index, layer in enumerate(getattr(config.model_spec.model, "layers", [])):
        experts = getattr(getattr(layer, "moe", None), "num_experts", None)
        if isinstance(experts, int) and experts % layout.expert:
            yield key, layout.expert, f"does not divide the {experts} experts of layer {index}"
            return


def _batch(config: Any, layout: Layout) -> Iterator[Finding]:
    local, whole = config.training.local_batch_size, config.training.global_batch_size
    step = local * layout.data
    if whole != -1 and whole % step:
        near = max(1, round(whole / step)) * step
        yield (
            "training.global_batch_size",
            whole,
            f"expected a multiple of {step} (local_batch_size {local} x {layout.data} data-parallel ranks), such as {near}",
        )


def _pipeline(config: Any, layout: Layout) -> Iterator[Finding]:
    if layout.pipeline == 1:
        return
    from torch.distributed.pipelining import schedules
    from torchtitan.distributed.pipeline_parallel import (
        _generate_llm_fqn_per_model_part,
        _get_pipeline_metadata,
    )

    parallelism = config.parallelism
    if config.model_spec.pipelining_fn is None:
        yield (
            _P + "pipeline_parallel_degree",
            layout.pipeline,
            f"{config.model_spec.name} cannot be pipelined; expected 1",
        )
        return
    try:
        schedules.get_schedule_class(parallelism.pipeline_parallel_schedule)
    except ValueError:
        names = [n.removeprefix("Schedule") for n in vars(schedules) if n.startswith("Schedule")]
        name = parallelism.pipeline_parallel_schedule
        expected = f"expected one of {', '.join(sorted(names))}{nearest(name, names)}"
        yield _P + "pipeline_parallel_schedule", name, expected
        return
    if parallelism.module_fqns_per_model_part is not None:
        return
    model = config.model_spec.model
    try:
        dims: Any = SimpleNamespace(pp=layout.pipeline)
        stages = _generate_llm_fqn_per_model_part(*_get_pipeline_metadata(dims, parallelism, model))
    except (ValueError, AssertionError) as error:
        key = (
            "pipeline_parallel_degree"
            if parallelism.pipeline_parallel_layers_per_stage is None
            else "pipeline_parallel_layers_per_stage"
        )
        layers = len(getattr(model, "layers", []))
        yield (
            _P + key,
            getattr(parallelism, key),
            f"the model's {layers} layers do not split so: {error}",
        )
        return
    bare = [i for i, names in enumerate(stages) if not any(n.startswith("layers.") for n in names)]
    if bare and layout.context > 1:  # TorchTitan looks for a stage's first attention
        yield (
            _P + "context_parallel_degree",
            layout.context,
            f"stage {bare[0]} of {len(stages)} has no layer whose attention could be split; expected 1, more layers, "
            "or a schedule with fewer stages, such as 1F1B",
        )


def _checkpoint(config: Any, layout: Layout) -> Iterator[Finding]:
    if not getattr(config.checkpoint, "create_seed_checkpoint", False):
        return
    if layout.ranks != 1:
        yield "checkpoint.create_seed_checkpoint", True, f"is made by one rank, not {layout.ranks}"
    if not config.checkpoint.enable:
        yield "checkpoint.enable", MISSING, "expected true beside create_seed_checkpoint"
