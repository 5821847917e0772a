"""Chains of views, in-place operators and backward passes: memory, versions and gradients as on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuron_dist.testing.op_mirror import differs

D = "neuron"

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda t: t[1:] if t.shape[0] > 1 else t,
    "every_other": lambda t: t[..., ::2],
    "first": lambda t: t[0] if t.dim() > 1 else t,
    "transpose": lambda t: t.transpose(0, -1),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "flip_dims": lambda t: t.movedim(0, -1),
    "chunk": lambda t: t.chunk(2, dim=-1)[-1],
    "unbind": lambda t: t.unbind(0)[-1] if t.dim() > 1 else t,
    "diagonal": lambda t: t.diagonal(0, 0, -1) if t.dim() > 1 else t,
    "unfold": lambda t: t.unfold(0, 1, 1),
    "alias": lambda t: t.view(t.shape),
    "detach": lambda t: t.detach(),
    "squeeze": lambda t: t.squeeze(),
    "flat": lambda t: t.reshape(-1),
    "select": lambda t: t.select(-1, 0) if t.dim() > 1 else t,
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "mul": lambda t: t.mul_(1.5),
    "zero": lambda t: t.zero_(),
    "add_own_sum": lambda t: t.add_(t.sum()),
    "exp": lambda t: t.exp_(),
    "copy": lambda t: t.copy_(torch.ones_like(t)),
    "masked": lambda t: t.masked_fill_(t > 0, 2.0),
    "out": lambda t: torch.mul(t.detach(), 2, out=t.detach()),
    "index": lambda t: t.index_fill_(0, torch.zeros(1, dtype=torch.long, device=t.device), 3.0),
}


def attempt(fn: Callable[..., Any], *args: Any) -> Any:
    """The result, or the type of the exception: both have to be the same on both devices."""
    try:
        return fn(*args)
    except (RuntimeError, IndexError) as error:
        return type(error).__name__


def run(x: Tensor, chains: list[tuple[list[str], str]]) -> list[Any]:
    base = x.clone() if x.requires_grad else x
    seen: list[Any] = []
    for views, write in chains:
        t: Any = base
        for name in views:
            t = attempt(VIEWS[name], t) if isinstance(t, Tensor) and t.dim() > 0 else t
        if isinstance(t, Tensor) and t.dim() > 0:
            seen += [attempt(WRITES[write], t), t, t._version]
    seen += [base, base._version]
    if x.requires_grad:
        seen.append(attempt(lambda: torch.autograd.grad(base.sin().sum(), x)[0]))
    return seen


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    chains=st.lists(
        st.tuples(
            st.lists(st.sampled_from(sorted(VIEWS)), max_size=4), st.sampled_from(sorted(WRITES))
        ),
        min_size=1,
        max_size=3,
    ),
    grad=st.booleans(),
)
def test_chains(shape: list[int], chains: list[tuple[list[str], str]], grad: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).requires_grad_(grad)
    assert differs(lambda t: run(t, chains), x) is None


def test_complex_views() -> None:
    def run(z: Tensor) -> list[Any]:
        y = z.clone()
        torch.view_as_real(y).mul_(2)
        y.imag.add_(1)
        y.conj()[0].zero_()
        y.mT.conj().imag.neg_()
        return [y, y.conj().imag, y.real, y.mH, *torch.autograd.grad(y.abs().sum(), z)]

    z = torch.randn(3, 4, dtype=torch.complex64, requires_grad=True)
    assert differs(run, z) is None


def test_saved_values_are_guarded() -> None:
    x = torch.randn(3, device=D, requires_grad=True)
    y = x * 1
    s = y.sin()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    parts = (x * 1).unbind()
    with pytest.raises(RuntimeError, match="multiple views"):
        parts[0].add_(1)


def test_storages_are_shared_resized_and_swapped() -> None:
    def run(x: Tensor) -> list[Any]:
        y = torch.empty(0, device=x.device)
        y.set_(x.untyped_storage(), 1, (2, 2), (2, 1))  # type: ignore[call-overload]
        y.fill_(7)
        z = x.view(2, 3)[1]
        x.untyped_storage().resize_(40)
        y.resize_(3, 3)[1:].zero_()  # what the storage has gained is not initialised
        sizes = [x.untyped_storage().nbytes()]
        w = torch.zeros(3, device=x.device).resize_as_(y).zero_()
        v = torch.ones(2, device=x.device)
        torch.utils.swap_tensors(v, w)
        x.data = torch.ones(3, device=x.device)
        return [y, z, v, w, x, sizes, y.untyped_storage().nbytes()]

    assert differs(run, torch.arange(6.0)) is None
