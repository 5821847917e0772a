"""One model type of transformers on the device: forward, backward and an SGD step against the CPU."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from neuron_dist.testing.architectures.inputs import candidates
from neuron_dist.testing.architectures.shrink import needs, recipes, shrunk

__all__ = ["OUTCOMES", "PARTS", "Row", "check", "compared"]

OUTCOMES = {
    "equal": "bit for bit",
    "close": "within the tolerance of float32, not bit for bit",
    "different": "outside of it",
    "failed": "the device raised where the CPU did not",
    "not run": "the CPU itself did not run it",
}
PARTS = ("forward", "backward", "step")
MOST_PARAMETERS = 30_000_000


@dataclass
class Row:
    """What was found for one model type."""

    model: str
    outcome: str = "not run"
    why: str = ""
    recipe: str = ""
    parameters: int = 0
    inputs: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    """How each of :data:`PARTS` compares."""
    seconds: float = 0.0
    tried: list[str] = field(default_factory=list)
    """Of a type that was not run: what was wrong with each recipe and inputs, without repetitions."""


@dataclass
class Step:
    """All floating tensors of one training step, on the CPU."""

    forward: list[torch.Tensor]
    backward: list[torch.Tensor]
    step: list[torch.Tensor]


def check(kind: str) -> Row:
    """The row of one model type of ``AutoModel``'s mapping."""
    row = Row(kind)
    built = False
    for model in _models(kind, row):
        built = True
        for inputs in _tried(kind, model, row):
            names = ", ".join(sorted(inputs))
            try:
                cpus = _step(copy.deepcopy(model), inputs)
            except Exception as error:
                _note(row, "inputs", f"{names}: {_short(error)}")
                continue
            if cpus.backward and not any(gradient.any() for gradient in cpus.backward):
                _note(row, "inputs", f"{names}: all gradients are zero, which compares nothing")
                continue
            row.parameters = sum(p.numel() for p in model.parameters())
            row.inputs, row.tried = sorted(inputs), []
            return _judged(row, model, inputs, cpus)
    if built:
        _note(row, "inputs", "none of those made here are its forward's")
    stages = ("inputs", "size", "configuration")  # how far it came
    row.why = next((t for stage in stages for t in row.tried if t.startswith(stage)), "no inputs")
    row.recipe = ""
    return row


def _note(row: Row, stage: str, text: str) -> None:
    if (line := f"{stage}: {text}") not in row.tried:
        row.tried.append(line)


def _models(kind: str, row: Row) -> Iterator[torch.nn.Module]:
    """Tiny models with random weights, the smallest first."""
    from transformers import AutoModel

    default = _default(kind)
    seen: list[dict[str, Any]] = []
    for row.recipe in recipes():
        try:
            config = type(default).from_dict(shrunk(default.to_dict(), row.recipe))
            if (as_dict := config.to_dict()) in seen:
                continue
            seen.append(as_dict)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
            if size > MOST_PARAMETERS:
                _note(row, "size", f"{size / 1e6:.0f} million parameters at the smallest")
                continue
            torch.manual_seed(0)
            model = AutoModel.from_config(config).train()
        except ImportError:
            raise  # a package is missing: no other recipe will find it
        except Exception as error:
            _note(row, "configuration", _short(error))
            continue
        for module in model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0
            if isinstance(getattr(module, "drop_prob", None), float):  # stochastic depth
                module.drop_prob = 0.0
        yield model


def _default(kind: str) -> Any:
    """The type's own configuration, with what it needs and has no default for."""
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **needs(kind))


def _tried(kind: str, model: torch.nn.Module, row: Row) -> Iterator[dict[str, torch.Tensor]]:
    try:
        yield from candidates(kind, model)
    except Exception as error:  # of the table's arithmetic with this configuration
        _note(row, "inputs", _short(error))


def _judged(row: Row, model: torch.nn.Module, inputs: Any, cpus: Step) -> Row:
    again = _step(copy.deepcopy(model), inputs)
    if "different" in [compared(getattr(again, p), getattr(cpus, p)) for p in PARTS]:
        row.why = "two runs on the CPU differ: random numbers of its own"
        return row
    try:
        mine = _step(model.to("neuron"), {name: t.to("neuron") for name, t in inputs.items()})
    except Exception as error:
        row.outcome, row.why = "failed", _short(error)
        return row
    row.parts = {part: compared(getattr(mine, part), getattr(cpus, part)) for part in PARTS}
    row.outcome = max(row.parts.values(), key=list(OUTCOMES).index)
    return row


def _step(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Step:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    outputs = _floats(model(**inputs))
    terms = [
        (o.float() ** 2).nan_to_num(0, 0, 0).mean()
        for o in outputs
        if o.requires_grad and o.numel()
    ]
    gradients = []
    if terms:
        torch.stack(terms).sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        torch.optim.SGD(model.parameters(), 0.01).step()
    return Step(
        [o.detach().cpu() for o in outputs],
        gradients,
        [p.detach().cpu() for p in model.parameters()],
    )


def _floats(value: Any) -> list[torch.Tensor]:
    """All floating tensors in a model's output, in order."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _floats(item)]
    return []


def compared(mine: list[torch.Tensor], cpus: list[torch.Tensor]) -> str:
    """``equal``, ``close`` or ``different``; NaN equals NaN."""
    if len(mine) != len(cpus):
        return "different"
    verdict = "equal"
    for a, b in zip(mine, cpus, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return "different"
        if not torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)):
            if not torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
                return "different"
            verdict = "close"
    return verdict


def _short(error: BaseException) -> str:
    text = re.sub(r"/\S*/site-packages/", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:160]}"
