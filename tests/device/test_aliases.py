"""CPU kernels see a neuron tensor through a CPU tensor, its alias, which its storage keeps for the next call."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F

D = "neuron"


@pytest.fixture
def seen():
    """An operator that keeps what its CPU kernel is given: ``call``, and the list."""
    kept: list[torch.Tensor] = []
    with torch.library._scoped_library("neuron_seen", "DEF") as library:
        library.define("look(Tensor x) -> Tensor")
        library.impl("look", lambda x: kept.append(x) or x.new_empty(0), "CPU")
        yield torch.ops.neuron_seen.look, kept


def test_one_that_a_kernel_kept_is_not_given_away_again(seen):
    look, kept = seen
    x = torch.arange(6, device=D)
    look(x)
    look(x.view(2, 3))
    look(x)
    x.resize_(3)
    assert [tuple(alias.shape) for alias in kept] == [(6,), (2, 3), (6,)]
    assert len({id(alias) for alias in kept}) == 3


def test_it_has_nothing_left_of_earlier_calls(seen):
    look, kept = seen
    weight = torch.randn(2, 2, 1, 1, device=D, requires_grad=True)
    F.conv2d(
        torch.randn(1, 2, 3, 3, device=D), weight
    )  # its kernel is told that a gradient is wanted
    look(weight.detach())
    z = torch.randn(3, dtype=torch.complex64, device=D)
    z.conj().add(1)
    look(z)
    assert not kept[0].requires_grad and not kept[1].is_conj()


def test_views_of_one_storage_take_turns():
    x = torch.randn(4, 4)
    y = x.to(D)
    for _ in range(2):
        for view in (
            lambda t: t.t(),
            lambda t: t[1:],
            lambda t: t.view(torch.int32),
            lambda t: t.view(torch.int16),
            lambda t: t[0, 0],
            lambda t: t.expand(2, 4, 4),
            lambda t: t,
        ):
            assert (view(y) + view(y)).cpu().equal(view(x) + view(x))
            assert torch.cat([y[0], y[:, 1], y[0]]).cpu().equal(torch.cat([x[0], x[:, 1], x[0]]))


def test_a_tensor_that_occurs_twice_is_one():
    x, y = torch.zeros(3, device=D), torch.zeros(3, device=D)
    for _ in range(3):
        torch._foreach_add_([x, y, x], 1.0)
        x.add_(x)
    assert x.tolist() == [28.0] * 3 and y.tolist() == [3.0] * 3


def test_the_callers_list_is_left_alone():
    tensors = [torch.zeros(2, device=D), torch.ones(2, device=D)]
    before = list(tensors)
    scripted = torch.jit.script(_added_twice)
    assert scripted(tensors).tolist() == [3.0, 3.0]
    assert all(a is b for a, b in zip(tensors, before, strict=True))


def _added_twice(tensors: list[torch.Tensor]) -> torch.Tensor:
    parts = torch.stack(tensors)
    return torch.stack(tensors).sum(0) + parts.sum(0) + tensors[1]


def test_inference_mode_and_training_share_a_tensor():
    x = torch.ones(3, device=D)
    with torch.inference_mode():
        made = x + 1
        made + x
    x.requires_grad_()
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    with torch.inference_mode():
        assert (x + made).tolist() == [3.0] * 3
    assert (x.detach() + made).tolist() == [3.0] * 3


def test_threads_that_read_one_tensor():
    x = torch.arange(64.0).view(8, 8)
    y = x.to(D)

    def work(row: int) -> bool:
        return all(
            (y[row] + y.t()[row]).cpu().equal(x[row] + x.t()[row]) and y.sum().item() == 2016.0
            for _ in range(200)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
