"""``module.to("neuron")`` keeps Parameters, as it does between the CPU and CUDA."""

import copy

import pytest
import torch
from torch import nn

D = "neuron"


@pytest.mark.parametrize(
    "move", [lambda m: m.to(D), lambda m: m.neuron(), lambda m: m.to(D, torch.bfloat16)]
)
def test_parameters_stay_the_same_objects(move):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = list(model.parameters())
    move(model)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert {p.device.type for p in before} == {D} and {b.device.type for b in model.buffers()} == {
        D
    }
    model.cpu()
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert {p.device.type for p in before} == {"cpu"}


def train(device, optimizer_first, tied):
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(20, 8), "head": nn.Linear(8, 20, bias=False)})
    if tied:
        model["head"].weight = model["embed"].weight
    optimizer = torch.optim.AdamW(model.parameters(), 0.1) if optimizer_first else None
    model.to(device)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.1)
    tokens = torch.arange(10, device=device)
    losses = []
    for _ in range(4):
        loss = nn.functional.cross_entropy(model["head"](model["embed"](tokens)), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, len(list(model.parameters()))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("optimizer_first", [False, True])
def test_optimizers_and_ties_survive_the_move(optimizer_first, tied):
    mine, cpus = (train(device, optimizer_first, tied) for device in (D, "cpu"))
    assert mine == cpus
    assert mine[1] == (1 if tied else 2) and mine[0][-1] < mine[0][0]


def test_gradients_move_along():
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    gradient = layer.weight.grad.clone()
    layer.to(D)
    assert layer.weight.grad.device.type == D and layer.weight.grad.cpu().equal(gradient)
    layer(torch.ones(1, 3, device=D)).sum().backward()
    assert layer.weight.grad.cpu().equal(2 * gradient)
    layer.cpu()
    layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad.equal(3 * gradient)


def test_data_may_be_of_the_other_device():
    x = torch.arange(4.0)
    x.data = torch.arange(6.0, device=D).reshape(2, 3)
    assert x.device.type == D and x.shape == (2, 3)
    y = x * 2
    x.data = torch.zeros(2)
    assert x.tolist() == [0, 0] and y.cpu().equal(torch.arange(6.0).reshape(2, 3) * 2)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.eye(2, device=D).to_sparse()


def test_host_memory_goes_when_a_module_has_moved():
    before = torch.neuron.memory_allocated()
    layer = nn.Linear(1000, 1000).to(D)
    assert torch.neuron.memory_allocated() - before >= 4_000_000
    twin = copy.deepcopy(layer)
    layer.cpu()
    del twin
    assert torch.neuron.memory_allocated() == before
