"""Programs that ranks run so that their traces are replayed: what FSDP, DDP, tensor and pipeline parallel do."""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def train(model, width, steps, read_loss):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x = torch.randn(8 + dist.get_rank(), width, device="neuron")
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if read_loss:
            loss.item()


def fsdp(width=128, layers=3, steps=3, read_loss=True):
    """FSDP2 over one half of the ranks, replicated over the other (HSDP)."""
    torch.manual_seed(0)
    mesh = init_device_mesh(
        "neuron", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
    )
    net = nn.Sequential(*(Block(width) for _ in range(layers))).to("neuron")
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, width, steps, read_loss)


def ddp(width=64, layers=3, steps=3, read_loss=True):
    """Futures' callbacks rather than waits."""
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(width) for _ in range(layers))).to("neuron")
    train(DistributedDataParallel(net, bucket_cap_mb=0.1), width, steps, read_loss)


def mixture(steps=3, anybody=True):
    """Groups, streams, events, messages of both kinds, batches, CPU tensors, uneven sizes, views, barriers.

    ``anybody``: also receive from whoever comes first, which another run may do in another order.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([r, r + 1]) for r in range(0, n, 2)]
    odd = dist.new_group([r for r in range(n) if r % 2], group_desc="odd")
    alone = [dist.new_group([r]) for r in range(n)][rank]
    side = torch.neuron.Stream()
    a = torch.randn(128 * (1 + rank), 128, device="neuron")
    for step in range(steps):
        x = torch.randn(1 << 16, device="neuron")
        work = dist.all_reduce(x, async_op=True)
        event = torch.neuron.Event()
        with torch.neuron.stream(side):
            a @ a.T
            if rank % 2:
                dist.all_gather_into_tensor(
                    torch.zeros(n // 2 << 18, device="neuron"),
                    torch.zeros(1 << 18, device="neuron"),
                    group=odd,
                )
            event.record()
        dist.all_reduce(torch.ones(4, device="neuron"), group=pairs[rank // 2])
        dist.all_reduce(torch.ones(4, device="neuron"), group=alone)
        a @ a.T
        work.wait()
        torch.neuron.current_stream().wait_event(event)
        # messages round the ring, small and large, several of one work's
        for size in (100, 1 << 18):
            ops = [
                dist.P2POp(dist.isend, torch.zeros(size, device="neuron"), (rank + 1) % n),
                dist.P2POp(dist.irecv, torch.zeros(size, device="neuron"), (rank - 1) % n),
            ]
            works = dist.batch_isend_irecv(ops)
            a @ a.T
            for w in works:
                w.wait()
        if rank == 0:
            for source in range(1, n):
                dist.recv(torch.zeros(10, device="neuron"), None if anybody else source)
        else:
            dist.send(torch.zeros(10, device="neuron"), 0)
        splits = [1000 * (r + rank + step) for r in range(n)]  # the same both ways
        dist.all_to_all_single(
            torch.zeros(sum(splits), device="neuron"),
            torch.zeros(sum(splits), device="neuron"),
            splits,
            splits,
        )
        # a view that is not contiguous is copied back when the collective has ended
        wide = torch.zeros(64, 64, device="neuron")
        copied = dist.broadcast(wide[:, ::2], step % n, async_op=True)
        y = a @ a.T
        copied.wait()
        cpu = torch.ones(1000)
        dist.all_reduce(cpu)
        future = (
            dist.all_reduce(y[:4, :100].clone(), async_op=True)
            .get_future()
            .then(lambda f: f.value()[0] * 2)
        )
        y += 1
        future.wait()
        y.sum().item()
        dist.barrier()
        torch.neuron.synchronize()


def unequal(steps=2):
    """Ranks that do not agree in how much they give to gather, and object collectives."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        objects = [None] * n
        dist.all_gather_object(objects, {"rank": rank, "more": "x" * (100 * rank + step)})
        dist.gather(
            torch.ones(100, device="neuron"),
            [torch.zeros(100, device="neuron") for _ in range(n)] if rank == 1 else None,
            dst=1,
        )
        dist.reduce_scatter(
            torch.zeros(64 * (rank + 1), device="neuron"),
            [torch.zeros(64 * (r + 1), device="neuron") for r in range(n)],
        )
        dist.all_gather(
            [torch.zeros(64 * (r + 1), device="neuron") for r in range(n)],
            torch.zeros(64 * (rank + 1), device="neuron"),
        )


def killed():
    """Rank 1 is killed between two all_reduces; the others fail then."""
    pair = dist.new_group([2, 3])
    a = torch.zeros(256, 256, device="neuron")
    x = torch.zeros(1000, device="neuron")
    for i in range(10):
        a = a @ a
        dist.all_reduce(x)
        if dist.get_rank() >= 2:
            dist.all_reduce(x, group=pair)
        if dist.get_rank() == 1 and i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
