"""Small corrections of torch itself, each with what makes it unnecessary."""

from __future__ import annotations

import functools
from typing import Any

import torch

from neuron_dist.device import memory_history
from neuron_dist.device.random import own_devices

__all__ = ["apply"]


def apply() -> None:
    """Applies all of them. Called once, when the device is registered."""
    _dlpack_device()
    _accelerator_snapshot()
    _fork_rng()


def _dlpack_device() -> None:
    # Tensor.__dlpack_device__ compares with the literal "privateuse1" and so misses a backend that was renamed
    # (torch 2.13 to 2.15). Unnecessary once it asks torch._C._get_privateuse1_backend_name().
    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[int, int]:
        if self.device.type == "neuron" and type(self) in (torch.Tensor, torch.nn.Parameter):
            from torch.utils.dlpack import DLDeviceType

            return DLDeviceType.kDLExtDev, self.device.index
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign, assignment]


def _accelerator_snapshot() -> None:
    # torch.accelerator.memory._snapshot knows xpu and takes everything else for cuda (torch 2.13). Unnecessary once
    # it asks torch.get_device_module().
    original = getattr(torch.accelerator.memory, "_snapshot", None)
    if original is None:
        return

    def _snapshot(device: object = None, augment_with_fx_traces: bool = False) -> object:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == "neuron":
            return memory_history._snapshot(device, augment_with_fx_traces)
        return original(device, augment_with_fx_traces)

    torch.accelerator.memory._snapshot = _snapshot  # type: ignore[assignment]


def _fork_rng() -> None:
    # fork_rng keeps the generators of all device_count() devices unless it is told which. With a process group the
    # other indices are other ranks', which have their own. Unnecessary once it asks the module for its devices.
    original = torch.random.fork_rng

    @functools.wraps(original)
    def fork_rng(devices: Any = None, enabled: bool = True, *args: Any, **kwargs: Any) -> Any:
        kind = kwargs.get("device_type")  # None: the accelerator, which is neuron
        if devices is None and enabled and not args and kind in (None, "neuron"):
            devices = own_devices()
            kwargs["device_type"] = "neuron"
        return original(devices, enabled, *args, **kwargs)

    torch.random.fork_rng = fork_rng
