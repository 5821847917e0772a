"""Pipeline parallelism: each rank has some of the layers; microbatches keep all of them busy (1F1B).

torchrun --nproc-per-node 4 examples/pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, LAYERS, BATCH, MICROBATCHES = 32, 4, 32, 8

dist.init_process_group("neuron")
rank, world_size = dist.get_rank(), dist.get_world_size()
last = world_size - 1

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
here = nn.Sequential(*layers[rank * LAYERS // world_size : (rank + 1) * LAYERS // world_size]).to("neuron")

stage = PipelineStage(here, rank, world_size, torch.device("neuron"))
schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.Adam(here.parameters(), lr=0.01)

x = torch.randn(BATCH, WIDTH)  # one batch, over and over
target = x.roll(1, dims=1).tanh().to("neuron")
for step in range(1, 21):
    losses = []  # of each microbatch, on the last stage
    if rank == 0:
        schedule.step(x.to("neuron"))
    elif rank == last:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    if rank == last and step in (1, 20):
        print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}")

if rank == last:
    print(f"layers on the last of {world_size} stages: {len(here)}")
dist.destroy_process_group()
