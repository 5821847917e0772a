"""torch's matrix products fused with a collective (``symm_mem``), which async tensor parallelism and TorchTitan's
``dist_gemm`` call: on ``neuron`` they are the collective and the product, one after the other.

On CUDA they overlap, piece by piece. The results are the same; simulated time is that of the two in sequence. torch
has them written so for its own meta tensors, and those are what is registered here.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["register"]

_FUSED = (
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
)
_library: torch.library.Library | None = None


def register() -> None:
    """Registers the operators for device neuron; a second call does nothing. They are defined once torch's
    ``torch.distributed._symmetric_memory`` is imported, by whoever calls them."""
    global _library
    if _library is None:
        _library = torch.library.Library("symm_mem", "IMPL", "PrivateUse1")
        for name in _FUSED:
            _library.impl(name, _unfused(name))


def _unfused(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        from torch.distributed import _symmetric_memory

        return getattr(_symmetric_memory, f"_{name}_fallback")(*args, **kwargs)

    return call
