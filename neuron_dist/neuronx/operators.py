"""Which operators ran, and which of them early TorchNeuron ran on the CPU."""

from __future__ import annotations

from neuron_dist import _C

__all__ = ["ALWAYS_ON_CPU", "clear_op_tracking", "get_executed_ops", "get_fallback_ops"]

ALWAYS_ON_CPU = (
    "cholesky",
    "cholesky_inverse",
    "det",
    "eigh",
    "inv",
    "ldl_factor",
    "ldl_solve",
    "lu",
    "lu_factor",
    "lu_solve",
    "qr",
    "slogdet",
    "svd",
    "triangular_solve",
)
"""TorchNeuron's list of linear algebra that has no implementation on the device (the pre-release of April 2026; the
list of 2.13.3 is not published). Here they run as all others do, on the simulated device."""


def get_executed_ops() -> list[str]:
    """Operators that ran on the device since the start or :func:`clear_op_tracking`, as ``aten::mm``, sorted."""
    return sorted(name for name in _C._executed_operators() if "::" in name)


def get_fallback_ops() -> list[str]:
    """Those of :func:`get_executed_ops` that TorchNeuron is known to run on the CPU, at the price of two copies.

    The simulated device runs every operator that the CPU has, so nothing falls back here: this tells what would.
    """
    return [name for name in get_executed_ops() if _on_cpu(name)]


def clear_op_tracking() -> None:
    """Both lists start again, empty."""
    _C._clear_executed_operators()


def _on_cpu(name: str) -> bool:
    plain = name.split("::", 1)[1].split(".")[0].lstrip("_")
    plain = plain.removeprefix("linalg_").removesuffix("_ex").removesuffix("_helper")
    return plain in ALWAYS_ON_CPU
