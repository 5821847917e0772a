"""Small corrections of torch itself, each with what makes it unnecessary."""

from __future__ import annotations

import torch

__all__ = ["apply"]


def apply() -> None:
    """Applies all of them. Called once, when the device is registered."""
    _dlpack_device()
    _linear_cross_entropy()


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
    table.update({("neuron", dtype): how for (device, dtype), how in table.items() if device == "cpu"})
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
