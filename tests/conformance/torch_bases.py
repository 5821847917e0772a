"""Tests on the base classes that torch's wheel has for tests in several processes, with tensors on ``neuron``."""

from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal import common_fsdp
from torch.testing._internal.common_distributed import MultiProcContinuousTest
from torch.testing._internal.common_fsdp import MLPStack, check_sharded_parity
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import (
    DTensorContinuousTestBase,
    DTensorTestBase,
    with_comms,
)


class TestContinuous(MultiProcContinuousTest):
    """Ranks that stay from test to test."""

    world_size = 2

    @classmethod
    def backend_str(cls) -> str:
        return "neuron"

    def test_device_type(self) -> None:
        self.assertEqual(self.device_type(), "neuron")

    def test_all_reduce(self) -> None:
        x = torch.full((3,), float(self.rank), device="neuron")
        dist.all_reduce(x)
        self.assertEqual(x.cpu(), torch.full((3,), 1.0))


class TestDTensor(DTensorContinuousTestBase):
    """``_test_op`` of torch's DTensor tests: every placement of the arguments against whole tensors."""

    world_size = 4

    def test_matmul(self) -> None:
        self.assertEqual(self.device_type, "neuron")
        a, b = torch.randn(8, 4, device="neuron"), torch.randn(4, 8, device="neuron")
        self._test_op(self.build_device_mesh(), torch.mm, a, b)

    def test_softmax(self) -> None:
        x = torch.randn(8, 12, device="neuron")
        self._test_op(self.build_device_mesh(), torch.softmax, x, dim=-1)


class TestDTensorProcesses(DTensorTestBase):
    """Processes for each test. ``init_pg`` knows a list of names; the one for a device beside Gloo is on it."""

    @with_comms(backend="cpu:gloo,neuron:neuron")
    def test_redistribute(self) -> None:
        mesh = self.build_device_mesh()
        x = torch.arange(32.0, device="neuron").view(8, 4)
        shards = distribute_tensor(x, mesh, [Shard(0)])
        self.assertEqual(shards.to_local().device.type, "neuron")
        self.assertEqual(shards.redistribute(mesh, [Replicate()]).to_local(), x)


# common_fsdp knows CUDA, HPU and XPU by name; everything else is a CPU to it.
@patch.multiple(common_fsdp, DEVICE_TYPE="neuron", DISTRIBUTED_BACKEND="neuron", DEVICE_COUNT=2)
class TestFSDP(common_fsdp.FSDPTestContinuous):
    """FSDP2 with the models and the comparison of torch's own tests."""

    world_size = 2

    @classmethod
    def backend_str(cls) -> str:
        return "neuron"

    @classmethod
    def device_type(cls) -> str:
        return "neuron"

    def test_train_parity(self) -> None:
        torch.manual_seed(42)
        model = MLPStack(8).to("neuron")
        sharded = MLPStack(8).to("neuron")
        sharded.load_state_dict(model.state_dict())
        for layer in sharded:
            fully_shard(layer)
        fully_shard(sharded)
        ours = torch.optim.Adam(model.parameters(), lr=1e-2)
        theirs = torch.optim.Adam(sharded.parameters(), lr=1e-2)
        torch.manual_seed(43 + self.rank)
        for _ in range(3):
            x = torch.randn(4, 8, device="neuron")
            losses = []
            for net, optimizer in ((model, ours), (sharded, theirs)):
                optimizer.zero_grad()
                losses.append(net(x).sum())
                losses[-1].backward()
                if net is model:
                    for p in model.parameters():
                        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                optimizer.step()
            self.assertEqual(losses[0], losses[1])
            check_sharded_parity(self, model, sharded)


if __name__ == "__main__":
    run_tests()
