"""Runs one sample of torch's operator database on the CPU and on a device, and says where they differ.

A *check* is one way to use an operator on one sample: forward, backward, out=, in place, ... (``VARIANTS``). It
counts when the CPU can run it, or raises an exception that the device should raise too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest import mock

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch.utils._pytree import tree_map

from neuron_dist.testing.op_mirror import Mirror, difference, tensors_in

__all__ = [
    "LAYOUTS",
    "MEANING",
    "VARIANTS",
    "Check",
    "all_ops",
    "cases",
    "check",
    "compare",
    "errors",
    "place",
    "samples",
    "variants_of",
]

MEANING = {
    "forward": "the operator",
    "backward": "gradients of its inputs",
    "gradgrad": "gradients of those",
    "jvp": "forward mode: the outputs' tangents",
    "out": "`out=`: a tensor that fits, one that is not contiguous, an empty one",
    "inplace": "the in-place form, and its gradients",
    "noncontiguous": "forward and backward of inputs that are not contiguous",
    "conj": "forward and backward of complex inputs with the conj bit",
    "errors": "inputs that the database says must raise",
}
VARIANTS = tuple(MEANING)
"""The ways to use an operator."""

# Results are not determined by the arguments: memory as it was found. lstsq gives LAPACK's gelsy uninitialised
# pivots, which it takes as a request to begin with those columns.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "linalg.lstsq",
    }
)
# torch takes these tensors on the CPU only, on every device.
CPU_ARGUMENTS = frozenset({"tensor_split"})
LAYOUTS = {
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
    "sparse_csc": torch.sparse_csc,
    "sparse_bsr": torch.sparse_bsr,
    "sparse_bsc": torch.sparse_bsc,
}


@dataclass(frozen=True)
class Check:
    """The outcome of one check. ``reason`` is None when the device did as the CPU."""

    variant: str
    reason: str | None
    raised: bool = False
    """Whether the CPU raised, and so the device had to."""


def all_ops() -> list[Any]:
    """Every operator of torch's database, the foreach ones too."""
    from torch.testing._internal import common_methods_invocations as database

    foreach = [
        op
        for name in ("unary", "binary", "pointwise", "reduce", "other")
        for op in getattr(database, f"foreach_{name}_op_db", [])
    ]
    return [*database.op_db, *foreach]


def cases() -> list[tuple[Any, torch.dtype]]:
    """Each operator with each dtype that its CPU kernels support, by name."""
    return [
        (op, dtype) for op in all_ops() for dtype in sorted(op.supported_dtypes("cpu"), key=str)
    ]


def _with_grad(op: Any, dtype: torch.dtype) -> bool:
    return bool(op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"))


def samples(
    op: Any, dtype: torch.dtype, most: int | None = None, layout: str = "strided"
) -> list[Any]:
    """The first ``most`` samples (all if None) of ``op``, made on the CPU with a fixed seed."""
    torch.manual_seed(0)
    grad = _with_grad(op, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if layout == "strided":
            made: Iterator[Any] = iter(op.sample_inputs("cpu", dtype, requires_grad=grad))
        else:
            made = iter(op.sample_inputs_sparse(LAYOUTS[layout], "cpu", dtype, requires_grad=grad))
        return list(islice(made, most))


def errors(op: Any) -> list[Any]:
    """Inputs that ``op`` should refuse, with the dtype and device that they are for left as they are."""
    if getattr(op, "error_inputs_func", None) is None:
        return []
    torch.manual_seed(0)
    return [e.sample_input for e in op.error_inputs("cpu")]


def variants_of(op: Any, dtype: torch.dtype) -> list[str]:
    """The variants that the database says ``op`` has for ``dtype``."""
    grad = _with_grad(op, dtype)
    real = dtype.is_floating_point or dtype.is_complex
    has = {
        "forward": True,
        "backward": grad,
        "gradgrad": grad and op.supports_gradgrad,
        "jvp": real and op.supports_forward_ad,
        "out": op.supports_out,
        "inplace": (op.get_inplace() if hasattr(op, "get_inplace") else op.inplace_variant)
        is not None,
        "noncontiguous": True,
        "conj": dtype.is_complex,
    }
    return [v for v in VARIANTS if has.get(v, False)]


def _call(op: Any, args: Any) -> Any:
    return op(args[0], *args[1], **args[2])


def _cotangents(outs: list[Tensor], seed: int) -> list[Tensor]:
    """What is fed to backward: the same numbers on every device, in the layout of the outputs."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for out in outs:
        if type(out) is not Tensor or out.layout != torch.strided:
            made.append(torch.ones_like(out))
            continue
        values = torch.randn(out.shape, dtype=torch.float64, generator=generator)
        if out.dtype.is_complex:
            values = torch.complex(values, values.flip(list(range(values.dim()))))
        made.append(torch.empty_like(out).copy_(values.to(out.dtype)))
    return made


def _gradients(outs: Any, args: Any, seed: int, create_graph: bool) -> list[Tensor]:
    roots = [t for t in tensors_in(outs) if t.requires_grad]
    leaves = [t for t in tensors_in(args) if t.requires_grad and t.is_leaf]
    if not roots or not leaves:
        return []
    grads = torch.autograd.grad(
        roots, leaves, _cotangents(roots, seed), create_graph=create_graph, allow_unused=True
    )
    return [g for g in grads if g is not None]


def _forward(op: Any, args: Any) -> Any:
    return _call(op, args)


def _backward(op: Any, args: Any) -> Any:
    return _gradients(_call(op, args), args, 1, create_graph=False)


def _forward_backward(op: Any, args: Any) -> Any:
    out = _call(op, args)
    return [out, *_gradients(out, args, 1, create_graph=False)]


def _gradgrad(op: Any, args: Any) -> Any:
    return _gradients(_gradients(_call(op, args), args, 1, create_graph=True), args, 2, False)


def _jvp(op: Any, args: Any) -> Any:
    def dual(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            return fwAD.make_dual(leaf.detach(), _cotangents([leaf.detach()], 3)[0])
        return leaf

    with fwAD.dual_level():
        out = _call(op, tree_map(dual, args))
        return [t for o in tensors_in(out) for t in fwAD.unpack_dual(o)]


def _out(op: Any, args: Any) -> Any:
    results = []
    with torch.no_grad():
        expected = _call(op, args)
        one = isinstance(expected, Tensor)
        for like in (_as_it_is, _every_other, _empty):
            outs = [like(t) for t in ([expected] if one else expected)]
            got = op(args[0], *args[1], **args[2], out=outs[0] if one else tuple(outs))
            same = [a is b for a, b in zip([got] if one else got, outs, strict=True)]
            results.append((outs, same))
    return results


def _as_it_is(t: Tensor) -> Tensor:
    return torch.zeros_like(t)


def _every_other(t: Tensor) -> Tensor:
    if t.layout != torch.strided or t.dim() == 0:
        return torch.zeros_like(t)
    wide = torch.zeros((*t.shape[:-1], 2 * t.shape[-1] + 1), dtype=t.dtype, device=t.device)
    return wide[..., 1::2]


def _empty(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=t.dtype, device=t.device)


def _inplace(op: Any, args: Any) -> Any:
    fn = op.get_inplace() if hasattr(op, "get_inplace") else op.inplace_variant
    first = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, args[0])
    got = fn(first, *args[1], **args[2])
    same = [a is b for a, b in zip(tensors_in(got), tensors_in(first), strict=False)]
    return [first, same, *_gradients(first, args, 1, create_graph=False)]


RUNS: dict[str, Callable[[Any, Any], Any]] = {
    "forward": _forward,
    "backward": _backward,
    "gradgrad": _gradgrad,
    "jvp": _jvp,
    "out": _out,
    "inplace": _inplace,
    "noncontiguous": _forward_backward,
    "conj": _forward_backward,
    "errors": _forward,
}


def _conj(t: Tensor) -> Tensor:
    if not t.is_complex() or t.layout != torch.strided:
        return t
    return t.detach().resolve_conj().conj().requires_grad_(t.requires_grad)


def _arguments(sample: Any, variant: str) -> Any:
    if variant == "noncontiguous":
        sample = sample.noncontiguous()
    args = (sample.input, sample.args, dict(sample.kwargs))
    if variant == "conj":
        args = tree_map(lambda t: _conj(t) if isinstance(t, Tensor) else t, args)
    return args


def _dirty(tree: Any, byte: int) -> None:
    """Leaves ``byte`` behind in the memory that results of these sizes, and small workspaces, get next."""
    sizes = {1 << n for n in range(13)}
    for t in tensors_in(tree):
        if t.layout == torch.strided and not t.is_nested and t.device.type == "cpu":
            sizes.add(t.untyped_storage().nbytes())
    blocks = [torch.full((n,), byte, dtype=torch.uint8) for n in sizes for _ in range(8)]
    del blocks


def _operator(op: Any) -> str:
    """The operator's name, also where ``op`` is torch's Python reference of it."""
    name: str = op.name
    return name.removeprefix("_refs.")


def place(op: Any, args: Any, device: str) -> tuple[Any, AbstractContextManager[Any]]:
    """``args`` on ``device``, and the context in which ``op`` runs there."""
    if _operator(op) not in CPU_ARGUMENTS:
        args = Mirror(device)(args)
    else:
        args = (Mirror(device)(args[0]), args[1], args[2])
    # Operators that make tensors of numbers only, and linspace of tensors, go by the default device.
    makes = not tensors_in(args) or _operator(op) in ("linspace", "logspace")
    return args, torch.device(device) if makes else nullcontext()


def _run(op: Any, variant: str, args: Any, device: str, seed: int) -> tuple[Any, Any]:
    args, context = place(op, args, device)
    torch.manual_seed(seed)
    # the database seeds random operators itself, always alike: left out, so that they are seen to be random
    with context, mock.patch.object(torch, "manual_seed", lambda _: torch.default_generator):
        return RUNS[variant](op, args), args


Run = Callable[[str, int], tuple[Any, Any]]
"""Does something on a device, with a seed; returns the results and what was given (it may have been written to)."""


def _determined(run: Run, first: tuple[Any, Any]) -> bool:
    """Whether the CPU gives the same result again: with another seed, and other memory to begin with."""
    for seed, byte in ((1, 0), (1, 1), (2, 0x5A), (3, 0xFF)):
        _dirty(first, byte)
        again = run("cpu", seed)
        if difference(first[0], again[0], first[1], again[1], "cpu") is not None:
            return False
    return True


def _name(error: BaseException) -> str:
    return type(error).__name__


def compare(variant: str, run: Run, device: str, values: bool = True, exact: bool = True) -> Check:
    """Runs on the CPU and on ``device``; the outcome. What the CPU itself does not give twice, and everything if not
    ``values``, is compared by metadata only; ``exact`` is ``difference``'s."""
    try:
        cpu = run("cpu", 1)
    except Exception as error:
        return _compare_errors(variant, run, device, error)
    try:
        other = run(device, 1)
    except Exception as error:
        return Check(variant, f"{_name(error)}: {error}")
    why = difference(*_pairs(cpu, other), device, values=values, exact=exact)
    if why == "values" and not _determined(run, cpu):
        why = difference(*_pairs(cpu, other), device, values=False, exact=exact)
    return Check(variant, why)


def _pairs(cpu: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    return cpu[0], other[0], cpu[1], other[1]


def _compare_errors(variant: str, run: Run, device: str, error: Exception) -> Check:
    try:
        run(device, 1)
    except Exception as other:
        if type(other) is type(error):
            return Check(variant, None, raised=True)
        return Check(
            variant, f"raises {_name(other)}: {other}; the CPU {_name(error)}: {error}", raised=True
        )
    return Check(variant, f"does not raise; the CPU {_name(error)}: {error}", raised=True)


def check(op: Any, variant: str, sample: Any, device: str = "neuron") -> Check | None:
    """One check; None if there is nothing to compare (the sample cannot be made in this variant).

    Random operators, and those whose results depend on what memory held, are compared by metadata only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            args = _arguments(sample, variant)
        except Exception:
            return None
        return compare(
            variant,
            lambda where, seed: _run(op, variant, args, where, seed),
            device,
            values=_operator(op) not in UNINITIALISED,
        )
