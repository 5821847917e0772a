"""torch.compile in ranks: functional collectives, tensor parallelism, FSDP2."""

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from neuron_dist.testing import run_ranks

D = "neuron"


def collectives():
    group = dist.group.WORLD
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0, device=D) + rank

    def f(x):
        total = functional.all_reduce(x * 2, "sum", group)
        parts = functional.reduce_scatter_tensor(total, "sum", 0, group)
        return functional.all_gather_tensor(parts + 1, 0, group)

    def g(x):
        x = x * 2
        dist.all_reduce(x)
        out = x.new_empty(size * x.numel())
        dist.all_gather_into_tensor(out, x)
        return out

    same = []
    for fn in (f, g):
        same.append(torch.compile(fn, backend=D, fullgraph=True)(x).equal(fn(x)))
    metrics = torch.neuron.get_dynamo_metrics()
    return same, [m["has_collectives"] for m in metrics.values()]


def test_collectives_are_in_the_graph():
    assert run_ranks(2, collectives) == [([True, True], [True, True])] * 2


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def tensor_parallel():
    mesh = init_device_mesh(D, (2,))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }

    def train(compiled):
        torch.manual_seed(0)
        model = parallelize_module(Mlp().to(D), mesh, plan)
        if compiled:
            model.compile(backend=D, fullgraph=True)
        torch.manual_seed(1)
        x = torch.randn(2, 8, 8, device=D).chunk(2, dim=1)[dist.get_rank()]
        losses = []
        for _ in range(2):
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
            losses.append(loss.item())
        return losses

    return train(True), train(False)


def test_tensor_parallelism_with_sequence_parallelism():
    for compiled, eager in run_ranks(2, tensor_parallel, timeout=280):
        assert compiled == eager and compiled[0] > compiled[1]


def sharded():
    def train(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(Mlp(), Mlp()).to(D)
        for block in model:  # as TorchTitan does: each block is compiled, then sharded
            if compiled:
                block.compile(backend=D, fullgraph=True)
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        torch.manual_seed(1 + dist.get_rank())
        x = torch.randn(4, 8, device=D)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return train(True), train(False), len(torch.neuron.get_dynamo_metrics())


def test_fsdp2():
    for compiled, eager, graphs in run_ranks(2, sharded, timeout=280):
        assert compiled == eager and graphs >= 2


def dtensors():
    """A function of DTensors: dynamo sees through them, redistribution is in the graph."""
    mesh = init_device_mesh(D, (2,))
    torch.manual_seed(0)
    a, b = torch.randn(4, 6, device=D), torch.randn(6, 8, device=D)
    x = distribute_tensor(a, mesh, [Shard(1)])
    y = distribute_tensor(b, mesh, [Shard(0)])

    def f(x, y):
        return (x @ y).redistribute(placements=[Replicate()]).to_local().relu()

    compiled = torch.compile(f, backend=D, fullgraph=True)(x, y)
    (metrics,) = torch.neuron.get_dynamo_metrics().values()
    return compiled.equal(f(x, y)), metrics["has_collectives"]


def test_dtensors():
    assert run_ranks(2, dtensors, timeout=280) == [(True, True)] * 2
