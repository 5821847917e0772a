"""DDP, FSDP2 and tensor parallelism give the losses and weights of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.target import DEVICES, IN_RANKS, neuron_only

pytestmark = [*IN_RANKS, pytest.mark.parametrize("device", DEVICES)]

STEPS, BATCH, WIDTH = 5, 8, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 1))


def batches(device):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        yield x.to(device), x.sum(1, keepdim=True).to(device)


def train(net, data, on_grads=lambda: None):
    """Losses of a few steps; ``on_grads`` is called between backward and step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for x, y in data:
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        on_grads()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def my_share(data):
    rank, size = dist.get_rank(), dist.get_world_size()
    return [(x.chunk(size)[rank], y.chunk(size)[rank]) for x, y in data]


def mean_over_ranks(losses):
    losses = torch.stack(losses)
    dist.all_reduce(losses, dist.ReduceOp.SUM)
    return (losses / dist.get_world_size()).cpu()


def whole(tensor):
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return tensor.detach().cpu()


def state(net):
    return {name.removeprefix("module."): whole(p) for name, p in net.named_parameters()}


def ddp(device):
    net = DistributedDataParallel(model().to(device))
    return mean_over_ranks(train(net, my_share(batches(device)))), state(net)


def fsdp(device, **policies):
    net = model().to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in net:
        fully_shard(layer, mesh=mesh, **policies)
    fully_shard(net, mesh=mesh, **policies)
    return mean_over_ranks(train(net, my_share(batches(device)))), state(net)


def hybrid_fsdp(device):
    net = model().to(device)
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return mean_over_ranks(train(net, my_share(batches(device)))), state(net)


def tensor_parallel(device):
    net = model().to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in list(net)[:2]:
        parallelize_module(block, mesh, plan)
    parallelize_module(net[2], mesh, RowwiseParallel(input_layouts=Replicate()))
    return torch.stack(train(net, batches(device))).cpu(), state(net)


def fsdp_and_tp(device):
    net = model().to(device)
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    for block in list(net)[:2]:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(net[2], mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    half = dist.get_rank() // 2
    data = [(x.chunk(2)[half], y.chunk(2)[half]) for x, y in batches(device)]
    return mean_over_ranks(train(net, data)), state(net)


def check(result, tolerance=1e-5):
    """Losses and weights of a rank against those of one process on the whole batches."""
    net = model()
    losses = torch.stack(train(net, batches("cpu")))
    got_losses, got_state = result
    torch.testing.assert_close(got_losses.float(), losses, rtol=tolerance, atol=tolerance)
    for name, expected in state(net).items():
        torch.testing.assert_close(got_state[name], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("fn, world_size", [
    (ddp, 2), (ddp, 4), (fsdp, 2), (fsdp, 4), (hybrid_fsdp, 4), (tensor_parallel, 2), (tensor_parallel, 4),
    (fsdp_and_tp, 4),
])  # fmt: skip
def test_as_one_process(fn, world_size, device):
    check(fn(device))


@pytest.mark.neuron(ranks=2)
def test_mixed_precision(device):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    check(fsdp(device, mp_policy=policy), tolerance=0.1)


@neuron_only
@pytest.mark.neuron(ranks=2, backend="cpu:neuron,neuron:neuron")
def test_cpu_offload(device):
    if device == "cpu":
        pytest.skip("there is nothing to offload from")
    check(fsdp(device, offload_policy=CPUOffloadPolicy(pin_memory=False)))


@neuron_only
@pytest.mark.neuron(ranks=2)
def test_gradient_divide_factor(device, mesh):
    """A factor that is no power of two makes FSDP2 ask for PREMUL_SUM."""
    net = model()
    x, y = next(iter(batches("cpu")))
    nn.functional.mse_loss(net(x), y).backward()
    sharded = fully_shard(model().to(device), mesh=mesh)
    sharded.set_gradient_divide_factor(3.0)
    x, y = next(iter(batches(device)))
    nn.functional.mse_loss(sharded(x), y).backward()
    for (name, p), q in zip(net.named_parameters(), sharded.parameters(), strict=True):
        torch.testing.assert_close(whole(q.grad), p.grad * 2 / 3, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.neuron(ranks=2)
def test_fsdp_gradients_are_the_mean_to_the_bit(device, mesh):
    net = model()
    halves = []
    x, y = next(iter(batches("cpu")))
    for x_half, y_half in zip(x.chunk(2), y.chunk(2), strict=True):
        net.zero_grad()
        nn.functional.mse_loss(net(x_half), y_half).backward()
        halves.append([p.grad.clone() for p in net.parameters()])
    sharded = fully_shard(model().to(device), mesh=mesh)
    (x, y), *_ = my_share(batches(device))
    nn.functional.mse_loss(sharded(x), y).backward()
    for (name, p), first, second in zip(sharded.named_parameters(), *halves, strict=True):
        assert torch.equal(whole(p.grad), (first + second) / 2), name
