"""Makes ``torch.neuron``, ``tensor.neuron()`` and their like exist."""

from __future__ import annotations

import sys

import torch

from neuron_dist import _C, compile, device
from neuron_dist.device import _cluster, _torch_fixes, memory, random
from neuron_dist.neuronx import metadata

__all__ = ["register"]

_registered = False


def _report(operator: str, dtype: str, seen: int) -> bool:
    from neuron_dist.fidelity.operators import tell  # not before there is something to tell

    return tell(operator, dtype, seen)


def register() -> None:
    """Registers the device with torch. The second and later calls do nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    _C._set_cluster_provider(_cluster.describe)
    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", device)
    for name, module in (("memory", memory), ("random", random)):
        sys.modules[f"torch.neuron.{name}"] = module
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
    )
    _torch_fixes.apply()
    compile.install()
    _C._watch_operators(_report)
    metadata.install()
