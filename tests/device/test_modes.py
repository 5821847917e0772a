"""Deterministic algorithms and pinned memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neuron_dist.testing.op_mirror import differs

D = "neuron"


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_what_nobody_wrote_is_nan(deterministic):
    assert torch.empty(3, device=D).isnan().all()
    assert torch.empty_strided((2, 2), (1, 4), device=D, dtype=torch.bfloat16).isnan().all()
    assert torch.empty(3, dtype=torch.int32, device=D).eq(2**31 - 1).all()
    assert torch.ones(3, device=D).resize_(6)[3:].isnan().all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        torch.empty(3, device=D)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_deterministic_kernels(deterministic):
    index = torch.tensor([0, 2, 0, 1])

    def run(x, index):
        out = torch.zeros(3, 5, device=x.device).index_add(0, index, x)
        out = out.scatter_add(0, index[:, None].expand(4, 5), x)
        out = out.index_put((index,), x, accumulate=True) + F.embedding(index[:3], x)
        (grad,) = torch.autograd.grad(out.square().sum(), x)
        return [out.detach(), grad, torch.bincount(index), x.detach().cumsum(0)]

    assert differs(run, torch.randn(4, 5, requires_grad=True), index) is None


def test_a_training_step_repeats_itself(deterministic):
    def train():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8, 2)
        ).to(D)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 1, 4, 4, device=D)).square().sum().backward()
            optimizer.step()
        return list(model.parameters())

    assert all(a.equal(b) for a, b in zip(train(), train(), strict=True))


def test_pinned_memory_and_copies_that_do_not_wait():
    pinned = torch.randn(4).pin_memory()
    there = pinned.to(D, non_blocking=True)
    back = torch.empty(4, pin_memory=True).copy_(there, non_blocking=True)
    torch.neuron.synchronize()
    assert back.is_pinned() and back.equal(pinned) and not there.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        there.pin_memory()
