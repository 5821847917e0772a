"""``model:`` of a recipe: another flavor than the config function's, its sizes, and what replaces its layers.

A TorchTitan model is a tree of configs in which one size stands in many places: the vocabulary is the embedding's, the
head's and the loss's. A key of this section changes all of them together.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from neuron_dist.titan.fields import Fields
from neuron_dist.titan.problems import Problem, one_of
from neuron_dist.titan.source import Source

__all__ = ["ModelSection", "apply_model"]


@dataclass(kw_only=True)
class ModelSection:
    """``model:``; what is not set stays as the config function has it."""

    flavor: str | None = None
    """A flavor of the module's ``model_registry``: ``8B``."""
    attn_backend: str | None = None
    """``flex`` or ``varlen``; both are computed densely here."""
    n_layers: int | None = None
    """The first so many layers."""
    vocab_size: int | None = None
    hidden_dim: int | None = None
    """Width of the dense feed-forward layers."""
    num_experts: int | None = None
    top_k: int | None = None
    """Experts that a token goes to."""
    moe_hidden_dim: int | None = None
    """Width of a routed expert; shared experts change in proportion."""
    float8: dict[str, Any] | None = None
    """TorchTitan's ``Float8LinearConverter``: ``{emulate: true}`` anywhere, without only on hardware that has it."""
    lora: dict[str, Any] | None = None
    """TorchTitan's ``LoRAConverter``: ``{rank: 8, alpha: 16, target_modules: [wq, wkv, wo]}``."""


def apply_model(config: Any, section: ModelSection, source: Source) -> tuple[Any, list[Problem]]:
    """``config`` (a ``Trainer.Config``, which is changed) with its model as ``section`` says, and what is wrong."""
    problems: list[Problem] = []

    def refuse(key: str, value: object, expected: str) -> None:
        path = f"model.{key}"
        problems.append(Problem(source.where(path), path, value, expected))

    if config.model_spec is None:
        return config, problems
    spec = _respecified(config.model_spec, section, refuse)
    if problems:
        return config, problems
    for key, (fits, change) in _SIZES.items():
        value = getattr(section, key)
        if value is None:
            continue
        wrong = "expected 1 or more" if value < 1 else fits(spec.model, value)
        if wrong:
            refuse(key, value, wrong)
        else:
            change(spec.model, value)
    if section.vocab_size and not problems:
        for part in _parts(config.loss):
            if hasattr(part, "global_vocab_size"):
                part.global_vocab_size = section.vocab_size
    fields = Fields(source, "model")
    for key, converter in _converters(section):
        built = fields.build(converter, getattr(section, key), f"model.{key}")
        if built is None or fields.problems:
            continue
        try:
            spec.model = built.build().convert(spec.model)
        except (ValueError, ImportError) as error:
            refuse(key, getattr(section, key), " ".join(str(error).split()))
    return dataclasses.replace(config, model_spec=spec), problems + fields.problems


def _respecified(
    spec: Any, section: ModelSection, refuse: Callable[[str, object, str], None]
) -> Any:
    """The ``ModelSpec`` of the flavor and attention backend that the section names."""
    if section.flavor is None and section.attn_backend is None:
        return spec
    module = importlib.import_module(spec.parallelize_fn.__module__.rpartition(".")[0])
    flavors: dict[str, Any] = next((v for n, v in vars(module).items() if n.endswith("_configs")), {})
    flavor = section.flavor or spec.flavor
    if flavor not in flavors:
        refuse("flavor", flavor, one_of(flavor, flavors, f"flavor of {spec.name}"))
        return spec
    arguments: dict[str, Any] = {}
    wants = inspect.signature(module.model_registry).parameters
    if "attn_backend" in wants:
        arguments["attn_backend"] = section.attn_backend or "flex"
    # Some flavors of a model are mixtures of experts, which alone know how their tokens travel.
    if "moe_comm_backend" in inspect.signature(flavors[flavor]).parameters:
        arguments["moe_comm_backend"] = "standard"
    try:
        return module.model_registry(flavor, **arguments)
    except (ValueError, KeyError) as error:
        refuse("attn_backend", section.attn_backend, " ".join(str(error).split()))
        return spec


def _converters(section: ModelSection) -> Iterator[tuple[str, type]]:
    """Key and config class of each converter that is asked for; quantization comes before LoRA."""
    if section.float8 is not None:
        from torchtitan.components.quantization import Float8LinearConverter

        yield "float8", Float8LinearConverter.Config
    if section.lora is not None:
        from torchtitan.components.lora import LoRAConverter

        yield "lora", LoRAConverter.Config


def _parts(config: Any) -> Iterator[Any]:
    """``config`` and every config in it."""
    yield config
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from _parts(value)


def _layers(model: Any) -> list[Any]:
    return [*getattr(model, "layers", []), *getattr(model, "mtp_layers", [])]


def _moes(model: Any) -> list[Any]:
    return [layer.moe for layer in _layers(model) if getattr(layer, "moe", None) is not None]


def _feed_forwards(model: Any) -> list[Any]:
    found = [getattr(layer, "feed_forward", None) for layer in _layers(model)]
    return [f for f in found if f is not None]


def _layers_fit(model: Any, n: int) -> str:
    here = len(getattr(model, "layers", []))
    return f"expected at most {here}, as many as the flavor has" if n > here else ""


def _keep_layers(model: Any, n: int) -> None:
    model.layers = model.layers[:n]


def _set_vocabulary(model: Any, n: int) -> None:
    model.vocab_size = n
    model.tok_embeddings.num_embeddings = n
    model.lm_head.out_features = n


def _is_dense(model: Any, n: int) -> str:
    return "" if _feed_forwards(model) else "the model has no dense feed-forward layers"


def _set_hidden(model: Any, n: int) -> None:
    for feed_forward in _feed_forwards(model):
        _widen(feed_forward, n)


def _widen(feed_forward: Any, n: int) -> None:
    feed_forward.w1.out_features = feed_forward.w3.out_features = feed_forward.w2.in_features = n


def _has_experts(model: Any, n: int) -> str:
    return "" if _moes(model) else "the model has no experts"


def _experts_fit(model: Any, n: int) -> str:
    for moe in _moes(model):
        groups = moe.router.num_expert_groups
        if groups and n % groups:
            return f"expected a multiple of {groups}, the router's groups of experts"
        if n < moe.router.top_k:
            return f"expected at least {moe.router.top_k}, the experts that a token goes to (model.top_k)"
    return _has_experts(model, n)


def _set_experts(model: Any, n: int) -> None:
    for moe in _moes(model):
        routed = moe.routed_experts
        for part in (moe, moe.router, routed.inner_experts, routed.token_dispatcher):
            part.num_experts = n
        moe.router.gate.out_features = n


def _set_choices(model: Any, n: int) -> None:
    for moe in _moes(model):
        moe.router.top_k = moe.routed_experts.token_dispatcher.top_k = n


def _set_expert_hidden(model: Any, n: int) -> None:
    for moe in _moes(model):
        experts = moe.routed_experts.inner_experts
        if moe.shared_experts is not None:
            _widen(moe.shared_experts, moe.shared_experts.w1.out_features * n // experts.hidden_dim)
        experts.hidden_dim = n


_Fits = Callable[[Any, int], str]
_Change = Callable[[Any, int], None]

_SIZES: dict[str, tuple[_Fits, _Change]] = {
    "n_layers": (_layers_fit, _keep_layers),
    "vocab_size": (lambda model, n: "", _set_vocabulary),
    "hidden_dim": (_is_dense, _set_hidden),
    "top_k": (_has_experts, _set_choices),
    "num_experts": (_experts_fit, _set_experts),
    "moe_hidden_dim": (_has_experts, _set_expert_hidden),
}
"""Key -> what is wrong with a value for a model, or nothing; and how it is set. ``top_k`` comes before
``num_experts``, so that both may become smaller."""
