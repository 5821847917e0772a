"""FSDP2: parameters, gradients and optimizer states are sharded; a layer is gathered while it is used.

torchrun --nproc-per-node 4 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("neuron")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("neuron", (world_size,), mesh_dim_names=("dp",))

torch.manual_seed(0)
model = nn.Sequential(*[nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)])
model.to("neuron")
whole = sum(p.numel() for p in model.parameters())

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)  # each layer is gathered by itself, ...
fully_shard(model, mesh=mesh, mp_policy=policy)  # ... and the root takes what is left
mine = sum(p.to_local().numel() for p in model.parameters())

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(8, 8, 64).chunk(world_size)[rank].to("neuron")  # one batch, over and over
for step in range(1, 9):
    loss = (model(x).float() - x.roll(1, dims=1)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    mean /= world_size
    if rank == 0 and step % 2 == 0:
        print(f"step {step}: loss {mean.item():.3f}, norm of the gradients {norm.item():.2f}")

if rank == 0:
    print(f"parameters: {whole} in all, {mine} on rank 0")
dist.destroy_process_group()
