"""Which operators ran, and which of them early TorchNeuron ran on the CPU."""

from __future__ import annotations

from neuron_dist import _C
from neuron_dist.fidelity.call import plain_name

__all__ = ["clear_op_tracking", "get_executed_ops", "get_fallback_ops"]

RULE = "linear-algebra-on-the-cpu"
"""The fidelity profile's rule that names them."""


def get_executed_ops() -> list[str]:
    """Operators that ran on the device since the start or :func:`clear_op_tracking`, as ``aten::mm``, sorted."""
    return sorted(name for name in _C._executed_operators() if "::" in name)


def get_fallback_ops() -> list[str]:
    """Those of :func:`get_executed_ops` that TorchNeuron is known to run on the CPU, at the price of two copies.

    The simulated device runs every operator that the CPU has, so nothing falls back here: this tells what would.
    """
    from neuron_dist.fidelity.loading import all_rules

    (rule,) = (rule for rule in all_rules() if rule.id == RULE)
    (condition,) = rule.conditions
    listed = condition.among or frozenset()
    return [name for name in get_executed_ops() if plain_name(name) in listed]


def clear_op_tracking() -> None:
    """Both lists start again, empty."""
    _C._clear_executed_operators()
