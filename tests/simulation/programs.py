"""Programs that the tests of simulated time run in ranks; each returns what its rank saw of the clock."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from neuron_dist import _C
from neuron_dist.distributed import Options
from neuron_dist.simulation import session


def now():
    """This device's latest stream, in ns."""
    return _C._device_ns(_C._current_device())


def figures():
    """This rank's own."""
    return next(f for f in _C._figures() if f["rank"] == dist.get_rank())


def late_rank(numel):
    """Rank 0 multiplies matrices before an all_reduce that rank 1 calls at once; both then add."""
    x = torch.zeros(numel, device="neuron")
    a = torch.zeros(512, 512, device="neuron")
    begin = now()
    if dist.get_rank() == 0:
        a @ a
    ready = now()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    end = now()
    x += 1
    return begin, ready, end, now(), work._get_duration()


def one_call(op, numel, algorithm):
    """Milliseconds of one call, ready on every rank at the same time."""
    group = dist.new_group(pg_options=options(algorithm)) if algorithm else dist.group.WORLD
    n = dist.get_world_size()
    x = torch.zeros(numel, device="neuron")
    if op == "all_reduce":
        work = dist.all_reduce(x, group=group, async_op=True)
    elif op == "reduce_scatter":
        out = torch.zeros(numel // n, device="neuron")
        work = dist.reduce_scatter_tensor(out, x, group=group, async_op=True)
    else:
        out = torch.zeros(numel * n, device="neuron")
        work = dist.all_gather_into_tensor(out, x, group=group, async_op=True)
    work.wait()
    return work._get_duration()


def on_chips(numel, algorithm, ranks):
    """Simulated ns of an all_reduce among some of the ranks; None on the others."""
    group = dist.new_group(ranks, pg_options=options(algorithm))
    if dist.get_rank() not in ranks:
        return None
    x = torch.zeros(numel, device="neuron")
    begin = now()
    dist.all_reduce(x, group=group)
    return now() - begin


def options(algorithm):
    made = Options()
    made.algorithm = algorithm
    return made


def estimate(numels):
    """The estimator's microseconds for all_reduces and a broadcast, and how long each takes when it runs."""
    tensors = [torch.ones(n, device="neuron") for n in numels]
    with dist._time_estimator() as cm:
        for t in tensors:
            dist.all_reduce(t)
        dist.broadcast(tensors[0], 0)
    untouched = all(bool((t == 1).all()) for t in tensors)
    works = [dist.all_reduce(t, async_op=True) for t in tensors] + [
        dist.broadcast(tensors[0], 0, async_op=True)
    ]
    for work in works:
        work.wait()
    return cm.estimated_time, [w._get_duration() for w in works], untouched


def messages(sizes):
    """Rank 0 sends tensors of these sizes to rank 1, which computes first; times of both sides' works."""
    tensors = [torch.zeros(n, dtype=torch.uint8, device="neuron") for n in sizes]
    a = torch.zeros(256, 256, device="neuron")
    begin = now()
    if dist.get_rank() == 0:
        works = [dist.isend(t, 1) for t in tensors]
    else:
        a @ a
        works = [dist.irecv(t, 0) for t in tensors]
    ready = now()
    ends = []
    for work in works:
        work.wait()
        ends.append(now())
    return begin, ready, ends


def on_host(numel):
    """A collective of CPU tensors holds up the host, and with it what the device is given next."""
    a = torch.zeros(64, 64, device="neuron")
    torch.neuron.synchronize()
    host = _C._host_ns()
    x = torch.zeros(numel)
    dist.all_reduce(x)
    after = _C._host_ns()
    before_op = now()
    a @ a
    return host, after, before_op, now()


def callbacks(numel):
    """What a future's callback computes begins where its collective ended, on every run and every rank."""
    x = torch.zeros(numel, device="neuron")
    begin = now()
    work = dist.all_reduce(x, async_op=True)
    done = work.get_future().then(lambda fut: fut.value()[0].mul_(2))
    done.wait()
    return begin, work._get_duration(), now()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def fsdp(width, layers, prefetch, steps=3, load=0):
    """FSDP2 over all ranks; the figures of each step. ``load``: milliseconds that ranks sleep here and there."""
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(width) for _ in range(layers))).to("neuron")
    for block in net:
        fully_shard(block)
    fully_shard(net)
    if not prefetch:
        for block in net:
            block._set_unshard_async_op(True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(64, width, device="neuron")
        net(x).square().mean().backward()
        if load:
            time.sleep(load * ((dist.get_rank() + step) % 3) / 1e3)
        optimizer.step()
        optimizer.zero_grad()
    return figures()["steps"]


def all_reduces(numel, count):
    """Steps that only communicate."""
    x = torch.zeros(numel, device="neuron")
    session.steps_end_here()
    session.end_step()
    for _ in range(count):
        dist.all_reduce(x)
        session.end_step()
    return figures()["steps"]


def traced(folder, steps):
    """Two groups, streams, messages, a collective that overlaps: what the trace has to show."""
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = [dist.new_group([r, r + 1]) for r in range(0, n, 2)]
    mine = rows[rank // 2]
    weight = torch.nn.Parameter(torch.randn(128, 128, device="neuron"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    side = torch.neuron.Stream()
    for _ in range(steps):
        x = torch.randn(128, 128, device="neuron")
        work = dist.all_reduce(x, async_op=True)
        with torch.neuron.stream(side):
            torch.zeros(256, 256, device="neuron").add_(1)
        y = x.detach() @ weight
        work.wait()
        dist.all_reduce(y.detach(), group=mine)
        torch.neuron.current_stream().wait_stream(side)
        t = torch.zeros(rank + 1, device="neuron")
        if rank == 0:
            dist.send(torch.zeros(1 << 16, device="neuron"), 1)
        elif rank == 1:
            dist.recv(torch.zeros(1 << 16, device="neuron"), 0)
        y.sum().backward()
        optimizer.step()
        del t
    return figures()


def killed(folder, kill):
    """Computes until it is killed; returns never on rank 1."""
    x = torch.zeros(64, 64, device="neuron")
    for i in range(200):
        x = x @ x
        if i == 100 and dist.get_rank() == 1 and kill:
            os.kill(os.getpid(), 9)
    return Path(folder).name
