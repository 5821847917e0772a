"""FlexAttention on device neuron: torch lists the devices that may use it, and knows autocast of two of them.

Its eager form is written in ordinary operators, forward and backward, so nothing else is missing. The module is heavy
(it imports the compiler), so we wait until somebody imports it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from neuron_dist.device._imports import when_imported

__all__ = ["install"]


def install() -> None:
    """Makes FlexAttention accept neuron tensors: now, or as soon as its module has been imported."""
    when_imported("torch.nn.attention.flex_attention", _open)


def _open(module: ModuleType) -> None:
    original = module._validate_device

    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "neuron":
            original(query, key, value)

    module._validate_device = _validate_device  # type: ignore[attr-defined]
    _autocast()


def _autocast() -> None:
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch.amp.autocast_mode import _cast

    autocast = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]
    if autocast in flex_attention.py_kernels:
        return

    @flex_attention.py_impl(autocast)
    def flex_attention_autocast(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        dtype = torch.get_autocast_dtype("neuron")
        cast = [_cast(t, "neuron", dtype) for t in (query, key, value)]
        keys = torch._C.DispatchKeySet(autocast)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return flex_attention(*cast, *args, **kwargs)
