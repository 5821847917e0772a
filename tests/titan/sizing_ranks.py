"""What ranks do for test_sizing: one works out what a recipe needs, others run it and look."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from neuron_dist.titan import shims
from neuron_dist.titan.run import prepare, world
from neuron_dist.titan.sizing.memory import Need, needs


def size(recipe: str, settings: list[str], ranks: int, attention: str = "dense") -> list[Need]:
    return needs(prepare(recipe, settings, ranks, ranks, "neuron", "neuron"), attention)


def run(recipe: str, settings: list[str], folder: str) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer states of this rank in its second step, and its peak."""
    os.chdir(folder)
    plan = prepare(recipe, settings, *world(), "neuron", "neuron")
    shims.after_import(plan.device, plan.backend, plan.cluster)
    trainer = plan.config.build()
    found: dict[str, int] = {}
    step = trainer.optimizers.step

    def look(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        tensors = [t for m in trainer.model_parts for t in (*m.parameters(), *m.buffers())]
        states = [s for o in trainer.optimizers.optimizers for s in o.state.values()]
        found["parameters"] = total(tensors)
        found["gradients"] = total(t.grad for t in tensors if t.requires_grad)
        found["optimizer"] = total(t for state in states for t in state.values())
        return result

    trainer.optimizers.step = look
    torch.neuron.reset_peak_memory_stats = lambda *args: None  # TorchTitan would, once a step
    trainer.train()
    found["peak"] = torch.neuron.max_memory_allocated()
    trainer.close()
    return found


def total(tensors: Any) -> int:
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return sum(t.nbytes for t in local if isinstance(t, torch.Tensor) and t.device.type == "neuron")
