"""What a reduction must give: contributions in the schedule's order, rounded to the dtype after each step."""

import numpy as np
import torch

from tests.distributed.inputs import COMPLEX, FLOAT8, FLOATS, UNSIGNED

FLOAT_REDUCTIONS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "PREMUL_SUM"]
INTEGER_REDUCTIONS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]
COMPLEX_REDUCTIONS = ["SUM", "AVG", "PREMUL_SUM"]
PREMUL_FACTOR = 0.5

_TORCH = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_NUMPY = {
    "SUM": np.add,
    "PRODUCT": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
_BOOL = {
    "SUM": torch.logical_or,
    "PRODUCT": torch.logical_and,
    "MIN": torch.logical_and,
    "MAX": torch.logical_or,
    "BAND": torch.logical_and,
    "BOR": torch.logical_or,
    "BXOR": torch.logical_xor,
}


def reductions_of(dtype):
    """The reductions that make sense for ``dtype``."""
    if dtype in COMPLEX:
        return COMPLEX_REDUCTIONS
    return FLOAT_REDUCTIONS if dtype.is_floating_point else INTEGER_REDUCTIONS


def rank_order(ranks):
    """The program that adds rank 0, 1, ... in this order."""
    return [[0] + [code for r in range(1, ranks) for code in (r, -1)]]


def reduced(reduction, contributions, programs):
    """The reduction of the ranks' contributions. Program i holds for part i of as many equal parts.

    A program is postfix: a rank stands for its contribution, -1 combines the two values on top.
    """
    dtype, shape = contributions[0].dtype, contributions[0].shape
    if reduction == "PREMUL_SUM":
        contributions = [_scaled(c, PREMUL_FACTOR) for c in contributions]
    flat = [c.reshape(-1) for c in contributions]
    numel, parts = flat[0].numel(), []
    for i, program in enumerate(programs):
        bounds = slice(numel * i // len(programs), numel * (i + 1) // len(programs))
        if bounds.start == bounds.stop and i:
            continue
        stack = []
        for code in program:
            if code >= 0:
                stack.append(flat[code][bounds])
            else:
                right = stack.pop()
                stack.append(_combined(reduction, stack.pop(), right))
        parts.append(stack.pop().to(dtype).view(torch.uint8))
    total = torch.cat(parts).view(dtype).reshape(shape)
    return _scaled(total, 1 / len(contributions)) if reduction == "AVG" else total.to(dtype)


def tolerance(reduction, dtype, ranks, *, same_order):
    """Relative error that is allowed: none where the order of additions is the reference's."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    scaled = reduction in ("AVG", "PREMUL_SUM")
    if same_order and not scaled:
        return 0.0
    return 4 * ranks * torch.finfo(dtype).eps


def _combined(reduction, left, right):
    if left.dtype == torch.bool:
        return _BOOL[reduction](left, right)
    if left.dtype in FLOAT8:
        return _TORCH[reduction](left.float(), right.float()).to(left.dtype)
    if left.dtype in UNSIGNED:
        return torch.from_numpy(np.asarray(_NUMPY[reduction](left.numpy(), right.numpy())))
    return _TORCH[reduction](left, right)


def _scaled(tensor, factor):
    if tensor.dtype in FLOAT8 or tensor.dtype in FLOATS[2:]:
        return (tensor.float() * factor).to(tensor.dtype)
    return tensor * factor
