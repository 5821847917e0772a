"""Small corrections of torch itself, each with what makes it unnecessary."""

from __future__ import annotations

import functools
from typing import Any

import torch

from neuron_dist.device import _flex_attention, memory_history
from neuron_dist.device.random import own_devices

__all__ = ["apply"]


def apply() -> None:
    """Applies all of them. Called once, when the device is registered."""
    _dlpack_device()
    _linear_cross_entropy()
    _refuse_to_share()
    _flex_attention.install()
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


def _linear_cross_entropy() -> None:
    # torch chooses how to accumulate by the device's name. Its kernels are the CPU's here, so that what is best for
    # the CPU (fp32 weight gradients: others are emulated) is best for us. Unnecessary once the table is open to others.
    from torch.nn.modules import linear_cross_entropy_options as options

    table = getattr(options, "_AUTO_DEFAULTS", {})
    table.update(
        {("neuron", dtype): how for (device, dtype), how in table.items() if device == "cpu"}
    )
    original = options.LinearCrossEntropyOptions._resolve_auto_acc_dtype

    def _resolve_auto_acc_dtype(
        dtype: torch.dtype, device: torch.device | None
    ) -> torch.dtype | None:
        if device is not None and device.type == "neuron":
            device = torch.device("cpu")
        return original(dtype, device)

    options.LinearCrossEntropyOptions._resolve_auto_acc_dtype = staticmethod(  # type: ignore[method-assign]
        _resolve_auto_acc_dtype
    )


def _refuse_to_share() -> None:
    # torch.multiprocessing would try to share the memory as if it were the CPU's, and say "_share_fd_: only available
    # on CPU". On hardware, too, a process's device memory is its own.
    from torch.multiprocessing import reductions

    def refuse(device: torch.device) -> None:
        raise RuntimeError(
            f"A tensor on {device} cannot be sent to another process: the memory of a neuron device belongs to the "
            "process that uses it. Send tensor.cpu(), and call .to('neuron') on what arrives; between ranks, use "
            "torch.distributed."
        )

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if tensor.device.type == "neuron":
            refuse(tensor.device)
        return reductions.reduce_tensor(tensor)

    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type == "neuron":
            refuse(storage.device)
        return reductions.reduce_storage(storage)

    kinds: set[Any] = {torch.Tensor, torch.nn.Parameter, *torch._tensor_classes}
    for kind in kinds:
        reductions.reduction.register(kind, reduce_tensor)
    reductions.reduction.register(torch.UntypedStorage, reduce_storage)


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
