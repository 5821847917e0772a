"""``torch.compile`` for device neuron: the backend ``neuron``, which the default one hands neuron's graphs to.

Nothing here imports torch's compiler; it is told of the device when somebody imports it.
"""

from __future__ import annotations

import importlib

from neuron_dist.device._imports import when_imported

__all__ = ["install"]


def install() -> None:
    """Registers backend and device with torch's compiler, now or as soon as it is imported."""

    def then(part: str, function: str) -> None:
        module = importlib.import_module(f"neuron_dist.compile.{part}")
        getattr(module, function)()

    when_imported("torch._dynamo.backends.registry", lambda _: then("backend", "register"))
    when_imported("torch._dynamo.device_interface", lambda _: then("interface", "register"))
    when_imported("torch._inductor.compile_fx", lambda _: then("inductor", "hand_over"))
