"""FlexAttention on device neuron: torch lists the devices that may use it, and knows autocast of two of them.

Its eager form is written in ordinary operators, forward and backward, so nothing else is missing. The module is heavy
(it imports the compiler), so we wait until somebody imports it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

__all__ = ["install"]

MODULE = "torch.nn.attention.flex_attention"


def install() -> None:
    """Makes FlexAttention accept neuron tensors: now, or as soon as its module has been imported."""
    if MODULE in sys.modules:
        _open(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _WhenImported(MODULE, _open))


class _WhenImported(MetaPathFinder):
    """Finds nothing by itself; calls ``then`` with the module ``name`` after it has been executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.then(module)

            loader.exec_module = exec_module
        return spec


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
