"""A training loop of one's own with accelerate, with checkpoints of the random state.

python examples/ecosystem/accelerate_training.py
torchrun --nproc-per-node 2 examples/ecosystem/accelerate_training.py
"""

from __future__ import annotations

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from tiny import CountingTokens, tiny_llama


def main() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    accelerator.print("type:", accelerator.distributed_type.value)
    accelerator.print("device:", accelerator.device)
    accelerator.print("ranks:", accelerator.num_processes)
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(CountingTokens(), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _, batch in zip(range(8), loader, strict=False):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    accelerator.print("learns:", losses[-1] < losses[0])
    with tempfile.TemporaryDirectory() as own:
        (folder,) = broadcast_object_list([own])  # all ranks use the first one's
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        before = torch.randn(4, device=accelerator.device)
        # safetensors (0.8) reads to no device that it does not know, so weights come by way of the CPU.
        accelerator.load_state(folder, map_location="cpu")
        again = torch.randn(4, device=accelerator.device)
        accelerator.wait_for_everyone()
    accelerator.print("random numbers go on where they were:", torch.equal(before, again))
    accelerator.end_training()


if __name__ == "__main__":
    main()
