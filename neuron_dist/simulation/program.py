"""One rank's program: the operators and collectives of any PyTorch code, recorded on the meta device.

    with Recorder() as recorder:
        loss = model(tokens)          # parameters and inputs on the device "meta": nothing is computed
        loss.backward()
    recorder.program.flops

Flops come from PyTorch's own formulas (:mod:`torch.utils.flop_counter`), bytes from the tensors: an operator reads
each of its tensor arguments and writes each of its results once, a view moves nothing, and an element that an expanded
tensor repeats counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

__all__ = ["Exchange", "Operator", "Program", "Recorder", "exchange"]

OVERWRITES = frozenset({"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_"})
"""In-place operators that do not read what was there."""
ALLOCATES = ("empty", "new_empty")
IGNORES = ("zeros", "ones", "full", "rand", "new_zeros", "new_ones", "new_full")
"""Operators that take at most the shape of their argument."""
PICKS = frozenset({"embedding", "gather", "index", "index_select"})
"""Operators that read of their first argument only what they write."""


@dataclass(frozen=True)
class Operator:
    """One operator of one rank."""

    name: str
    """As in ``aten.mm``, without the namespace."""
    flops: int
    """Floating point operations on TensorE; 0 for what runs on the other engines."""
    nbytes: int
    """Bytes that it reads from and writes to HBM."""
    dtype: str
    """Name of its first tensor argument's dtype: ``bfloat16``."""
    causal: bool = False
    """Whether it is attention under a causal mask, of which ``flops`` counts the whole square."""


@dataclass(frozen=True)
class Exchange:
    """One collective of one rank."""

    op: str
    """A name of :func:`collectives.plan`: ``all_gather``."""
    nbytes: int
    """Bytes of the whole collective as nccom-test counts them: an all_gather's output, a reduce_scatter's input."""


@dataclass
class Program:
    """What one rank runs, in order."""

    operators: list[Operator] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def flops(self) -> int:
        return sum(o.flops for o in self.operators)

    @property
    def nbytes(self) -> int:
        return sum(o.nbytes for o in self.operators)

    def __add__(self, other: Program) -> Program:
        return Program(self.operators + other.operators, self.exchanges + other.exchanges)

    def __mul__(self, times: int) -> Program:
        return Program(self.operators * times, self.exchanges * times)


_recording: list[Program] = []


class Recorder(TorchDispatchMode):
    """Records what runs under it, forward and backward, into :attr:`program`."""

    def __init__(self) -> None:
        super().__init__()
        self.program = Program()

    def __enter__(self) -> Recorder:
        _recording.append(self.program)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _recording.pop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operator = _operator(func, args, kwargs, result)
        if operator is not None:
            self.program.operators.append(operator)
        return result


def exchange(op: str, nbytes: int) -> None:
    """Records a collective of the code that runs under a :class:`Recorder`; nothing happens without one."""
    if _recording:
        _recording[-1].exchanges.append(Exchange(op, nbytes))


def _operator(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Operator | None:
    """What one call costs, or None for views, allocations and what the host does alone."""
    read = _tensors((args, kwargs))
    written = _tensors(result)
    if not any(t.device.type == "meta" for t in [*read, *written]):
        return None
    name = func._overloadpacket._qualified_op_name.split("::")[1]
    arguments = func._schema.arguments
    given = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    changed = _tensors([given[a.name] for a in arguments if a.is_write and a.name in given])
    known = {_storage(t) for t in read}
    fresh = [t for t in written if _storage(t) not in known and not name.startswith(ALLOCATES)]
    stored = _unique([*changed, *fresh])
    if not stored:
        return None
    if name.startswith(IGNORES):
        read = []
    elif name in OVERWRITES or func._overloadname.endswith("out"):
        places = {_storage(t) for t in changed}
        read = [t for t in read if _storage(t) not in places]
    formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
    flops = int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0
    result_bytes = sum(map(_nbytes, stored))
    argument_bytes = list(map(_nbytes, _unique(read)))
    if name in PICKS:
        argument_bytes[0] = min(argument_bytes[0], result_bytes)
    return Operator(
        name=name,
        flops=flops,
        nbytes=sum(argument_bytes) + result_bytes,
        dtype=str((read or stored)[0].dtype).removeprefix("torch."),
        causal=bool(given.get("is_causal", False)),
    )


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Without tensors that are the same memory seen the same way."""
    found = {(_storage(t), t.storage_offset(), t.shape, t.stride()): t for t in tensors}
    return list(found.values())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _nbytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements on the device; 0 for a scalar that the host holds."""
    if tensor.device.type != "meta":
        return 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()
