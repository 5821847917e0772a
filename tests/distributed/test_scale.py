"""Many ranks on few cores: sleeping ranks must not starve those that work."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed.target import DEVICES, launch


def small_all_reduces(device, count):
    x = torch.ones(16, device=device)
    for _ in range(count):
        dist.all_reduce(x, dist.ReduceOp.MAX)
    y = torch.full((1,), float(dist.get_rank()), device=device)
    dist.all_reduce(y)
    dist.barrier()
    return y.item()


@pytest.mark.parametrize("device", DEVICES)
def test_sixteen_ranks(device):
    assert launch(16, small_all_reduces, device, 200, timeout=100) == [120.0] * 16


@pytest.mark.parametrize("device", DEVICES)
def test_one_rank(device):
    assert launch(1, small_all_reduces, device, 200) == [0.0]
