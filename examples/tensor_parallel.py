"""Tensor parallelism by hand: a feed-forward layer whose weights are DTensors.

torchrun --nproc-per-node 4 examples/tensor_parallel.py

The first weight is split by its rows, the second by its columns, so that the ranks meet only once, in the sum at the
end. torch.distributed.tensor.parallel.parallelize_module does the same to a module.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

dist.init_process_group("neuron")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("neuron", (world_size,), mesh_dim_names=("tp",))

torch.manual_seed(0)
x = torch.randn(8, 32)
up, down = torch.randn(128, 32) / 32**0.5, torch.randn(32, 128) / 128**0.5


def feed_forward(x, up, down):
    return torch.relu(x @ up.T) @ down.T


# On one device, to compare with.
up_whole, down_whole = up.clone().requires_grad_(), down.clone().requires_grad_()
expected = feed_forward(x, up_whole, down_whole)
expected.square().mean().backward()

# On all: each rank holds 128 / world_size of the hidden units.
x_tp = distribute_tensor(x.to("neuron"), mesh, [Replicate()])
up_tp = distribute_tensor(up.to("neuron"), mesh, [Shard(0)]).requires_grad_()
down_tp = distribute_tensor(down.to("neuron"), mesh, [Shard(1)]).requires_grad_()
y = feed_forward(x_tp, up_tp, down_tp)
assert y.placements == (Partial(),)  # every rank has its units' share of the sum
y = y.redistribute(placements=[Replicate()])  # one all_reduce
y.square().mean().backward()

same_output = torch.allclose(y.to_local().cpu(), expected, atol=1e-5)
same_gradients = all(
    torch.allclose(sharded.grad.full_tensor().cpu(), whole.grad, atol=1e-6)
    for sharded, whole in ((up_tp, up_whole), (down_tp, down_whole))
)
if rank == 0:
    print(f"first weight: {tuple(up_tp.shape)}, of it on rank 0 {tuple(up_tp.to_local().shape)}")
    print(f"output as on one device: {same_output}")
    print(f"gradients as on one device: {same_gradients}")
dist.destroy_process_group()
