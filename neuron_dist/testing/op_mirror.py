"""Copies of arguments on another device that keep everything an operator can see, and the comparison of results.

``mirror`` keeps sizes, strides, offsets, conj and neg bits, and which tensors share a storage. ``difference`` compares
what the CPU and a device made of mirrored arguments to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["Mirror", "difference", "differs", "tensors_in"]

COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
ROWS = (torch.sparse_csr, torch.sparse_bsr)


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among the leaves of ``tree``, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class Mirror:
    """Copies trees of CPU tensors to ``device``; tensors that shared a storage share one there too.

    Mentions of the device ``cpu`` in the tree (strings, ``torch.device``) become ``device``.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.tensors: dict[int, Tensor] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self.tensor(leaf)
        if isinstance(leaf, str) and leaf == "cpu":
            return self.device
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device(self.device)
        return leaf

    def tensor(self, t: Tensor) -> Tensor:
        """The copy of ``t``; the same one if ``t`` has been seen before."""
        if id(t) not in self.tensors:
            copy = self._copy(t.detach())
            if t.requires_grad:
                copy.requires_grad_()
            self.tensors[id(t)] = copy
            self._kept.append(t)
        return self.tensors[id(t)]

    def _copy(self, t: Tensor) -> Tensor:
        if t.is_conj():
            return self._copy(torch._conj(t)).conj()
        if t.is_neg():
            return torch._neg_view(self._copy(torch._neg_view(t)))
        if type(t) is not Tensor or t.is_quantized or t.is_mkldnn or t.is_nested:
            return t.clone() if self.device == "cpu" else t.to(self.device)
        if t.layout == torch.sparse_coo:
            copy = torch.sparse_coo_tensor(
                self._copy(t._indices()),
                self._copy(t._values()),
                t.shape,
                device=self.device,
                check_invariants=False,
            )
            return copy._coalesced_(t.is_coalesced())
        if t.layout in COMPRESSED:
            compressed, plain = _indices(t)
            return torch.sparse_compressed_tensor(
                self._copy(compressed),
                self._copy(plain),
                self._copy(t.values()),
                t.shape,
                layout=t.layout,
                device=self.device,
                check_invariants=False,
            )
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            fresh = torch.UntypedStorage(storage.nbytes(), device=self.device)
            if storage.nbytes():
                fresh.copy_(storage)
            self.storages[key] = fresh
            self._kept.append(storage)
        with torch.no_grad():
            return torch.empty(0, dtype=t.dtype, device=self.device).set_(
                self.storages[key],  # type: ignore[call-overload]
                t.storage_offset(),
                t.size(),
                t.stride(),
            )


def _indices(t: Tensor) -> tuple[Tensor, Tensor]:
    if t.layout in ROWS:
        return t.crow_indices(), t.col_indices()
    return t.ccol_indices(), t.row_indices()


def _parts(t: Tensor) -> list[Tensor]:
    """The strided tensors that ``t`` consists of."""
    if t.layout == torch.sparse_coo:
        return [t._indices(), t._values()]
    if t.layout in COMPRESSED:
        return [*_indices(t), t.values()]
    if t.is_nested:
        return [t.values()] if t.layout == torch.jagged else list(t.unbind())
    return [t]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.is_quantized:
        a, b = a.int_repr(), b.int_repr()
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    # as_strided, since a single element may have any stride and be contiguous
    a, b = (t.contiguous().as_strided((t.numel(),), (1,)).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def _close(a: Tensor, b: Tensor) -> bool:
    try:
        torch.testing.assert_close(a, b, equal_nan=True)
    except AssertionError:
        return False
    return True


def _tensor_difference(cpu: Tensor, other: Tensor, values: bool, exact: bool) -> str | None:
    for what in ("dtype", "layout", "shape", "requires_grad"):
        a, b = getattr(cpu, what), getattr(other, what)
        if a != b:
            return f"{what}: CPU {a}, device {b}"
    if type(cpu) is not type(other):
        return f"type: CPU {type(cpu).__name__}, device {type(other).__name__}"
    if cpu.layout == torch.sparse_coo and cpu.is_coalesced() != other.is_coalesced():
        return f"is_coalesced: CPU {cpu.is_coalesced()}, device {other.is_coalesced()}"
    with torch.no_grad():
        for a, b in zip(_parts(cpu.detach()), _parts(other.detach()), strict=True):
            if a.shape != b.shape:
                return f"shape of a part: CPU {tuple(a.shape)}, device {tuple(b.shape)}"
            if a.layout == torch.strided and not a.is_nested and a.stride() != b.stride():
                return f"strides: CPU {a.stride()}, device {b.stride()}"
            for bit in ("is_conj", "is_neg"):
                if getattr(a, bit)() != getattr(b, bit)():
                    return f"{bit}: CPU {getattr(a, bit)()}, device {getattr(b, bit)()}"
            if values and not (_same_bits if exact else _close)(a, b.cpu()):
                return "values"
    return None


def _aliases(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """For each strided tensor: the first one whose storage it has, and its offset there."""
    first: dict[int, int] = {}
    out = []
    for i, t in enumerate(tensors):
        if t.layout != torch.strided or t.is_nested or type(t) not in (Tensor, torch.nn.Parameter):
            continue
        owner = first.setdefault(t.untyped_storage()._cdata, i)
        out.append((owner, int(t.storage_offset())))
    return out


def difference(
    cpu: Any,
    other: Any,
    cpu_args: Any,
    other_args: Any,
    device: str,
    values: bool = True,
    exact: bool = True,
) -> str | None:
    """Where the results of one call differ; None if they do not.

    ``cpu`` and ``other`` are trees of results, the args what the call was given (compared too: it may have written
    to them). Without ``values``, only what is known without reading data is compared. Not ``exact``: values may
    differ by what ``torch.testing.assert_close`` allows, and what is a view of what is not looked at.
    """
    a, b = tree_leaves(cpu), tree_leaves(other)
    if len(a) != len(b):
        return f"number of results: CPU {len(a)}, device {len(b)}"
    args = list(zip(tensors_in(cpu_args), tensors_in(other_args), strict=True))
    for x, y in [*zip(a, b, strict=True), *args]:
        if not isinstance(x, Tensor):
            same = type(x) is type(y) and (x == y or (x != x and y != y) or not values)
            if not same and str(x).replace("cpu", device) != str(y).split(":")[0]:
                return f"result: CPU {x!r}, device {y!r}"
            continue
        if not isinstance(y, Tensor):
            return f"result: CPU a tensor, device {y!r}"
        why = _tensor_difference(x, y, values, exact)
        if why is not None:
            return why
    for x, y in zip(a, b, strict=True):
        if isinstance(x, Tensor) and x.device.type == "cpu" and y.device.type != device:
            return f"device: the result is on {y.device.type}"
    if not exact:
        return None
    xs = [*(x for x, _ in args), *(x for x in a if isinstance(x, Tensor))]
    ys = [*(y for _, y in args), *(y for y in b if isinstance(y, Tensor))]
    if _aliases(xs) != _aliases(ys):
        return "aliases: results share other storages or offsets than on the CPU"
    if [x._is_view() for x in xs] != [y._is_view() for y in ys]:
        return "views: autograd takes other results for views than on the CPU"
    return None


def differs(fn: Callable[..., Any], *args: Any, device: str = "neuron") -> str | None:
    """Where ``fn(*args)`` differs between the CPU and ``device``; None if it does not. ``args`` are on the CPU."""
    cpu, other = Mirror("cpu")(args), Mirror(device)(args)
    return difference(fn(*cpu), fn(*other), cpu, other, device)
