"""A quick tour of the device and the simulated cluster, in one process.

python examples/quick_tour.py
"""

import torch

from collectives import load_cluster, plan

# The device. `import torch` has loaded it; its results are the CPU's, bit for bit.
torch.manual_seed(0)
weight = torch.randn(1024, 1024)
x = torch.randn(1024, 1024)
y = x.to("neuron") @ weight.to("neuron")
print(f"result on {y.device}, equal to the CPU's: {torch.equal(y.cpu(), x @ weight)}")

# Its memory: a caching allocator with the HBM of one logical NeuronCore.
properties = torch.neuron.get_device_properties(0)
print(f"memory: {torch.neuron.memory_allocated() >> 20} MiB of {properties.total_memory >> 30} GiB allocated")

# Its clock: how long the same work would take on the real chip. The same on every machine.
for dtype in (torch.float32, torch.bfloat16):
    a, b = (t.to("neuron", dtype) for t in (x, weight))
    start, end = (torch.Event("neuron", enable_timing=True) for _ in range(2))
    start.record()
    a @ b
    end.record()
    torch.neuron.synchronize()
    print(f"matmul of 1024 x 1024 in {dtype}: {start.elapsed_time(end) * 1000:.1f} us of simulated time")

# The cluster: which algorithm Neuron would choose, and what it would cost.
cluster = load_cluster("trn2.48xlarge")
for nbytes in (64 << 10, 64 << 20):
    found = plan("all_reduce", nbytes, range(64), cluster)
    print(f"all_reduce of {nbytes >> 10} KiB over 64 cores: {found.algorithm}, {found.time_ns / 1e3:.0f} us")

# Autograd, autocast, and a training step, as on any other device.
model = torch.nn.Linear(1024, 1).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for _ in range(10):
    with torch.autocast("neuron", dtype=torch.bfloat16):
        loss = (model(y) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"ten steps: the loss falls from {losses[0]:.0f} to {losses[-1]:.0f}")
