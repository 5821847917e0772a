"""Torch's own checkers of operators, on the device: fake tensors, AOTAutograd, schemas.

Each of them raises where an operator is not what torch's compiler is told that it is. An operator passes on the device
if its check ends there as it does on the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from neuron_dist.testing.op_checks import Check, compare, place
from neuron_dist.testing.op_mirror import tensors_in

__all__ = ["MEANING", "check"]

MEANING = {
    "fake": "every operator beneath it, also in backward, has the dtype, sizes, strides and device that its fake tensor "
    "promises (`CrossRefFakeMode`)",
    "aot": "traced by AOTAutograd, forward and backward: what eager mode gives (`optests.aot_autograd_check`)",
    "schema": "writes to what its schema says, and aliases no more (`SchemaCheckMode`)",
}


def _fake(op: Any, args: Any) -> None:
    with torch._subclasses.CrossRefFakeMode():
        out = op(args[0], *args[1], **args[2])
        roots = [t for t in tensors_in(out) if t.requires_grad]
        leaves = [t for t in tensors_in(args) if t.requires_grad and t.is_leaf]
        if roots and leaves:
            seeds = [torch.ones_like(t) for t in roots]
            torch.autograd.grad(roots, leaves, seeds, allow_unused=True)


def _aot(op: Any, args: Any) -> None:
    from torch.testing._internal.optests import aot_autograd_check

    aot_autograd_check(op, (args[0], *args[1]), args[2], dynamic=False, check_gradients="auto")


def _schema(op: Any, args: Any) -> None:
    from torch._subclasses.schema_check_mode import SchemaCheckMode

    with SchemaCheckMode():
        op(args[0], *args[1], **args[2])


RUNS: dict[str, Callable[[Any, Any], None]] = {"fake": _fake, "aot": _aot, "schema": _schema}


def check(op: Any, variant: str, sample: Any, device: str = "neuron") -> Check:
    """One checker on one sample: how it ends on the CPU and on ``device``."""

    def run(where: str, seed: int) -> tuple[Any, Any]:
        args, context = place(op, (sample.input, sample.args, dict(sample.kwargs)), where)
        torch.manual_seed(seed)
        with context:
            RUNS[variant](op, args)
        return None, ()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(variant, run, device)
