"""Many ranks on few cores: sleeping ranks must not starve those that work."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed.target import DEVICES, IN_RANKS

pytestmark = IN_RANKS


@pytest.mark.neuron(timeout=280)
@pytest.mark.parametrize("world_size", [1, 16])
@pytest.mark.parametrize("device", DEVICES)
def test_small_all_reduces(device, world_size, rank):
    x = torch.ones(16, device=device)
    for _ in range(200):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    y = torch.full((1,), float(rank), device=device)
    dist.all_reduce(y)
    dist.barrier()
    assert y.item() == sum(range(world_size))
