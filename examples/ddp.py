"""Data parallelism: every rank has the whole model and its share of each batch.

torchrun --nproc-per-node 4 examples/ddp.py
torchrun --nproc-per-node 2 examples/ddp.py --backend gloo --device cpu     # the same script without neuron-dist
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="neuron")
parser.add_argument("--device", default="neuron")
args = parser.parse_args()

dist.init_process_group(args.backend)
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same weights and batches on every rank
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(args.device)
model = DistributedDataParallel(model)  # adds up gradients while backward still runs
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for step in range(1, 21):
    batch = torch.randn(32, 16)
    x = batch.chunk(world_size)[rank].to(args.device)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()  # of this rank's share; the batch's is the mean of them
    dist.all_reduce(mean)
    mean /= world_size
    if rank == 0 and step % 5 == 0:
        print(f"step {step}: loss {mean.item():.4f}")

dist.destroy_process_group()
