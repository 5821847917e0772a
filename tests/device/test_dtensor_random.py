"""Random numbers of DTensor: one rank and several make the same weights."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    rand,
    randn,
)

from neuron_dist.testing import run_ranks

D = "neuron"


def weights(mesh_shape, placements):
    """A model's weights, initialised after they were distributed, as every rank sees them whole."""
    mesh = init_device_mesh(D, mesh_shape)
    torch.manual_seed(7)

    def shard(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                key, nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements))
            )

    # Pieces of 16 values and more: see "Random numbers" in docs/device.md.
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 64))
    model = distribute_module(model.to_empty(device=D), mesh, shard)
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    values = [*model.parameters(), randn(32, 16, device_mesh=mesh, placements=placements)]
    values.append(rand(8, 16, device_mesh=mesh, placements=placements))
    return [value.full_tensor().tolist() for value in values]


@pytest.mark.parametrize(
    ("mesh", "placements"), [((2,), [Shard(0)]), ((2, 2), [Replicate(), Shard(0)])]
)
def test_same_weights_on_one_and_several_ranks(mesh, placements):
    (alone,) = run_ranks(1, weights, (1,) * len(mesh), placements)
    ranks = 2 * len(mesh)
    for several in run_ranks(ranks, weights, mesh, placements):
        assert several == alone


def replicas():
    mesh = init_device_mesh(D, (2,))
    torch.manual_seed(torch.distributed.get_rank())  # ranks differ; the mesh's seed is rank 0's
    local = rand(4, 4, device_mesh=mesh, placements=[Replicate()]).to_local()
    shards = rand(4, 4, device_mesh=mesh, placements=[Shard(0)]).to_local()
    return local.tolist(), shards.tolist()


def test_replicas_agree_and_shards_differ():
    (first, low), (second, high) = run_ranks(2, replicas)
    assert first == second
    assert low != high


def states():
    """What accelerate's checkpoints do: every rank saves and restores the list of its own states."""
    saved = torch.neuron.get_rng_state_all()
    a = torch.randn(3, device=D)
    torch.neuron.set_rng_state_all(saved)
    b = torch.randn(3, device=D)
    with torch.random.fork_rng(device_type=D):
        torch.manual_seed(1)
        torch.randn(3, device=D)
    c = torch.randn(3, device=D)
    torch.neuron.set_rng_state_all(saved)
    torch.randn(3, device=D)
    return len(saved), a.equal(b), torch.randn(3, device=D).equal(c)


def test_states_of_all_own_devices():
    assert run_ranks(2, states) == [(1, True, True)] * 2
