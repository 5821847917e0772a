"""What a reduction must give: contributions in rank order, rounded to the dtype after each step."""

from functools import reduce

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


def reduced(reduction, contributions):
    """The reduction of the contributions of rank 0, 1, ... in this order."""
    dtype = contributions[0].dtype
    if reduction == "PREMUL_SUM":
        contributions = [_scaled(c, PREMUL_FACTOR) for c in contributions]
    total = reduce(lambda left, right: _combined(reduction, left, right), contributions).clone()
    return _scaled(total, 1 / len(contributions)) if reduction == "AVG" else total.to(dtype)


def tolerance(reduction, dtype, ranks, *, rank_order):
    """Relative error that is allowed: none where the order of additions is the reference's."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    scaled = reduction in ("AVG", "PREMUL_SUM")
    if rank_order and not scaled:
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
