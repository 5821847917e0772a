"""Input tensors of a test case: values that every rank can compute for every other, and layouts to put them in."""

from dataclasses import dataclass

import torch

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
REDUCIBLE = [*FLOATS, *FLOAT8, *SIGNED, *UNSIGNED, *COMPLEX, torch.bool]
ALL_DTYPES = [*REDUCIBLE, torch.float8_e8m0fnu]

SHAPES = [(), (0,), (1,), (1, 0, 2), (3, 5), (64,), (1000,), (70_001,)]
LAYOUTS = ["contiguous", "offset", "strided", "transposed", "neg", "conj"]
LAZY = {"neg", "conj"}
"""Layouts whose values are not what is in memory; a backend may refuse them."""


def values(seed, rank, shape, dtype):
    """What ``rank`` contributes: small numbers whose sums and products stay finite in every dtype."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.float8_e8m0fnu:
        return (2.0 ** torch.randint(-3, 4, shape, generator=generator)).to(dtype)
    if dtype.is_complex:
        parts = torch.randn((*shape, 2), generator=generator, dtype=torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    low = 0 if dtype in UNSIGNED else -100
    return torch.randint(low, 100, shape, generator=generator).to(dtype)


@dataclass
class Placed:
    """A tensor in some layout, and the memory around it."""

    tensor: torch.Tensor
    base: torch.Tensor
    before: torch.Tensor
    outside: torch.Tensor
    """Which elements of ``base`` do not belong to ``tensor``."""

    def neighbours_untouched(self):
        return same_bits(self.base.cpu()[self.outside], self.before[self.outside])


def place(content, layout, device):
    """``content`` on ``device``, laid out in memory as ``layout`` says."""
    shape = content.shape
    match layout:
        case "strided" if content.dim():
            base_shape, view = (*shape[:-1], 2 * shape[-1]), lambda base: base[..., ::2]
        case "transposed":
            base_shape, view = (
                shape[::-1],
                lambda base: base.permute(tuple(reversed(range(base.dim())))),
            )
        case "offset" | "strided":
            base_shape, view = (content.numel() + 3,), lambda base: base[1:-2].view(shape)
        case _:
            base_shape, view = shape, lambda base: base
    base = torch.ones(base_shape).to(content.dtype)
    outside = torch.ones(base_shape, dtype=torch.bool)
    view(outside).fill_(False)
    view(base).copy_(content)
    if layout == "conj":
        base = base.conj_physical()
    elif layout == "neg":
        base = -base
    before = base.clone()
    base = base.to(device)
    tensor = view(base)
    if layout == "conj":
        tensor = tensor.conj()
    elif layout == "neg":
        tensor = torch._neg_view(tensor)
    return Placed(tensor, base, before, outside)


def same_bits(left, right):
    """Whether two tensors hold the same bits; NaN equals itself."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_bits(left), _bits(right))


def _bits(tensor):
    tensor = (
        tensor.cpu()
        .resolve_conj()
        .resolve_neg()
        .flatten()
        .clone(memory_format=torch.contiguous_format)
    )
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor).reshape(-1)
    return tensor.view(torch.uint8)
