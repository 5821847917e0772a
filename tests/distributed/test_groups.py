"""Process groups: ways to make them, sub-groups, splitting, device meshes, the fake backend."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.distributed.target import BACKEND, DEVICES, HAS_DEVICE, launch, neuron_only

on_both = pytest.mark.parametrize("device", DEVICES)
needs_device = pytest.mark.skipif(not HAS_DEVICE, reason="no torch.neuron")


def total(value, device, group=None):
    x = torch.tensor([float(value)], device=device)
    dist.all_reduce(x, group=group)
    return x.item()


def subgroups(device):
    """Overlapping groups, one with its ranks in an unusual order, one of a single rank."""
    rank = dist.get_rank()
    for ranks in ([0, 1], [1, 2, 3], [3, 1], [2], [0, 1, 2, 3]):
        group = dist.new_group(ranks)
        if rank in ranks:
            assert total(10**rank, device, group) == sum(10**r for r in ranks)
            gathered = [None] * len(ranks)
            dist.all_gather_object(gathered, rank, group=group)
            assert gathered == [dist.get_global_rank(group, i) for i in range(len(ranks))]
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER


def local_synchronization(device):
    rank = dist.get_rank()
    ranks = [0, 2] if rank % 2 == 0 else [1, 3]
    group = dist.new_group(ranks, use_local_synchronization=True)
    assert total(10**rank, device, group) == sum(10**r for r in ranks)


def interleaved_groups(device):
    """Two groups used in different orders by different ranks, asynchronously, must not wait for each other."""
    one, two = dist.new_group(), dist.new_group()
    x, y = torch.ones(3, device=device), torch.ones(3, device=device)
    order = [(one, x), (two, y)] if dist.get_rank() % 2 else [(two, y), (one, x)]
    for work in [dist.all_reduce(t, group=group, async_op=True) for group, t in order]:
        work.wait()
    assert x[0].item() == y[0].item() == dist.get_world_size()


def many_groups(device):
    groups = [dist.new_group() for _ in range(40)]
    assert sum(total(1, device, group) for group in groups) == 40 * dist.get_world_size()


def bind():
    """What torch asks of those who split or shrink a group with an accelerator: a bound device."""
    dist.init_process_group(
        BACKEND, device_id=torch.device("neuron", int(os.environ["LOCAL_RANK"]))
    )


def split(device):
    bind()
    rank = dist.get_rank()
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    ranks = [0, 1] if rank < 2 else [2, 3]
    assert dist.get_process_group_ranks(group) == ranks
    assert total(10**rank, device, group) == sum(10**r for r in ranks)
    assert total(1, device) == 4


def shrink(device):
    if device == "neuron":
        bind()
    else:
        dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    assert total(1, device) == 4
    if rank == 3:
        return None
    group = dist.shrink_group([3])
    return total(10**rank, device, group)


def init_without_name(device):
    dist.init_process_group()
    assert total(1, device) == dist.get_world_size()
    return dist.get_backend_config()


def init_by_config(config, device):
    dist.init_process_group(config)
    assert total(1, "cpu") == total(1, device) == dist.get_world_size()
    dist.barrier()
    return dist.get_backend_config()


def init_twice(device):
    sums = []
    for attempt in range(2):
        store = dist.TCPStore(*_address(), is_master=False)
        prefix = dist.PrefixStore(f"attempt {attempt}", store)
        rank, size = _place()
        dist.init_process_group(BACKEND, store=prefix, rank=rank, world_size=size)
        sums.append(total(1, device))
        dist.destroy_process_group()
    assert sums == [2, 2]


def _address():
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _place():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def mesh(device):
    """A mesh by itself brings the process group up, and each of its dimensions reduces on its own."""
    grid = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    rank = dist.get_rank()
    assert total(10**rank, device, grid["tp"].get_group()) == (11 if rank < 2 else 1100)
    assert total(10**rank, device, grid["dp"].get_group()) == (101 if rank % 2 == 0 else 1010)
    flat = grid[("dp", "tp")]._flatten("all")
    assert total(1, device, flat.get_group()) == 4


def fake(device):
    dist.init_process_group("fake", rank=0, world_size=64)
    x = torch.ones(3, device=device)
    dist.all_reduce(x)
    assert dist.get_world_size() == 64


def identity():
    return dist.get_backend(), dist.get_backend_config(), dist.get_default_backend_for_device("cpu")


@on_both
@pytest.mark.parametrize(
    "fn",
    [subgroups, local_synchronization, interleaved_groups, many_groups],
    ids=lambda fn: fn.__name__,
)
def test_groups(fn, device):
    launch(4, fn, device)


@needs_device
@on_both
def test_split(device):
    launch(4, split, device, backend=None)


@neuron_only
@on_both
def test_shrink(device):
    assert launch(4, shrink, device, backend=None) == [111, 111, 111, None]


@on_both
def test_init_twice(device):
    launch(2, init_twice, device, backend=None)


@needs_device
def test_mesh_without_process_group():
    launch(4, mesh, "neuron", backend=None)


@on_both
def test_mesh(device):
    launch(4, mesh, device)


@needs_device
def test_init_without_name():
    assert "neuron:neuron" in launch(2, init_without_name, "neuron", backend=None)[0]


@needs_device
@pytest.mark.parametrize("config", ["cpu:gloo,neuron:neuron", "neuron:neuron,cpu:neuron", "neuron"])
def test_init_by_config(config):
    launch(2, init_by_config, config, "neuron", backend=None)


@neuron_only
def test_names():
    (backend, config, _), _ = launch(2, identity)
    assert backend == "neuron" and "neuron:neuron" in config and "cpu:neuron" in config


@on_both
def test_fake(device):
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  registers the backend before the fork

    launch(1, fake, device, backend=None)
