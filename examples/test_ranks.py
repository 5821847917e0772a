"""Tests in several ranks, with the plugin that neuron-dist brings to pytest (docs/testing.md).

pytest examples/test_ranks.py
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


@pytest.mark.neuron(ranks=4)
def test_all_reduce(rank, device):
    x = torch.full((3,), float(rank), device=device)
    dist.all_reduce(x)
    assert x.tolist() == [6.0, 6.0, 6.0]


@pytest.mark.neuron(backend="gloo")
@pytest.mark.parametrize("world_size", [1, 2, 4])  # runs in that many ranks
def test_gather(rank, world_size):
    ranks = [None] * world_size
    dist.all_gather_object(ranks, rank)
    assert ranks == list(range(world_size))


@pytest.mark.neuron(ranks=4, mesh=(2, 2), mesh_dim_names=("dp", "tp"))
def test_mesh(rank, mesh):
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    whole = torch.arange(32.0).reshape(4, 8).to(mesh.device_type)
    sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert sharded.to_local().shape == (2, 4)
    assert torch.equal(sharded.full_tensor(), whole)


@pytest.mark.neuron(ranks=2)
def test_checkpoint(mesh, tmp_path):  # tmp_path is one folder for all ranks
    saved = distribute_tensor(torch.arange(8.0).to(mesh.device_type), mesh, [Shard(0)])
    checkpoint.save({"x": saved}, checkpoint_id=tmp_path)
    loaded = DTensor.from_local(torch.zeros(8, device=mesh.device_type), mesh, [Replicate()])
    checkpoint.load({"x": loaded}, checkpoint_id=tmp_path)
    assert torch.equal(loaded.to_local(), saved.full_tensor())


@pytest.mark.neuron(ranks=2, cluster="trn1.32xlarge", env={"NEURON_DIST_FIDELITY": "strict"})
def test_what_the_real_one_refuses(rank, device):
    """In strict mode, what the real TorchNeuron would refuse raises here, on every rank."""
    uneven = [1, 2] if rank == 0 else [2, 3]
    x, out = torch.ones(3 if rank == 0 else 5, device=device), torch.empty(3 if rank == 0 else 5, device=device)
    with pytest.raises(RuntimeError, match="fidelity"):
        dist.all_to_all_single(out, x, uneven, uneven)
