"""Which modules stand on which rank, and a short stand-in for each stage: two layers of each kind instead of all."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from neuron_dist.titan.layout import Layout

__all__ = ["Sample", "Stage", "sample_config", "stages_of"]

SAMPLED = 2
"""Layers of a kind in a sample: what holds two neighbours at once, such as a gathered layer beside the next, needs
two."""


@dataclass(frozen=True)
class Sample:
    """The modules of a stage with at most :data:`SAMPLED` layers of a kind. Stages with equal samples are traced once."""

    first: bool
    """It has the embedding."""
    last: bool
    """It has the norm, the head and the loss."""
    kinds: tuple[int, ...]
    """Kind of each layer."""


@dataclass(frozen=True)
class Stage:
    """A part of the model that one pipeline rank runs as a whole: all of it without pipelining."""

    index: int
    modules: tuple[str, ...]
    """Names, as ``module_fqns_per_model_part`` has them."""
    layers: Counter[int]
    """Kind -> number of layers."""
    sample: Sample
    sample_layers: tuple[int, ...]
    """Numbers of the model's layers that stand in the sample."""


def stages_of(config: Any, layout: Layout) -> list[Stage]:
    """The stages of ``config`` (a ``Trainer.Config``), in order."""
    kinds = _kinds(config.model_spec.model.layers)
    return [
        _stage(index, tuple(names), kinds) for index, names in enumerate(_modules(config, layout))
    ]


def sample_config(model: Any, layers: tuple[int, ...]) -> Any:
    """The model's config with these of its layers alone."""
    return dataclasses.replace(copy.deepcopy(model), layers=[model.layers[i] for i in layers])


def _modules(config: Any, layout: Layout) -> list[list[str]]:
    from torchtitan.distributed.pipeline_parallel import (
        _generate_llm_fqn_per_model_part,
        _get_pipeline_metadata,
    )

    model, parallelism = config.model_spec.model, config.parallelism
    if layout.pipeline == 1:
        names = [f"layers.{i}" for i in range(len(model.layers))]
        return [["tok_embeddings", *names, "norm", "lm_head"]]
    if parallelism.module_fqns_per_model_part is not None:
        return parallelism.module_fqns_per_model_part
    dims: Any = SimpleNamespace(pp=layout.pipeline)
    return _generate_llm_fqn_per_model_part(*_get_pipeline_metadata(dims, parallelism, model))


def _stage(index: int, modules: tuple[str, ...], kinds: list[int]) -> Stage:
    numbers = [int(m.partition(".")[2]) for m in modules if m.startswith("layers.")]
    taken: Counter[int] = Counter()
    sampled = []
    for number in numbers:
        taken[kinds[number]] += 1
        if taken[kinds[number]] <= SAMPLED:
            sampled.append(number)
    sample = Sample(
        first="tok_embeddings" in modules,
        last="lm_head" in modules,
        kinds=tuple(kinds[n] for n in sampled),
    )
    return Stage(index, modules, taken, sample, tuple(sampled))


def _kinds(layers: list[Any]) -> list[int]:
    """A number for each layer, equal for layers that differ in the values of their weights at most."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(_signature(layer), len(known)) for layer in layers]


def _signature(value: Any) -> Hashable:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (f.name for f in dataclasses.fields(value) if f.name != "param_init")
        return (
            type(value).__qualname__,
            *((name, _signature(getattr(value, name))) for name in fields),
        )
    if isinstance(value, dict):
        return tuple((str(k), _signature(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return getattr(value, "__qualname__", type(value).__qualname__)
    return repr(value)
