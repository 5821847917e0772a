"""diffusers: a small U-Net learns to remove noise, then a pipeline makes pictures with it.

python examples/ecosystem/diffusion.py
"""

from __future__ import annotations

import tempfile

import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel
from diffusers.utils.torch_utils import get_device


def tiny_unet() -> UNet2DModel:
    """Some ten thousand random weights, for pictures of 8 by 8."""
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=4,
    )


def pictures(pipeline: DDIMPipeline) -> torch.Tensor:
    """Two pictures; diffusers draws the noise on the CPU, so a seed gives the same ones on any device."""
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        batch_size=2,
        generator=torch.Generator().manual_seed(0),
        num_inference_steps=4,
        output_type="np",
    )
    return torch.from_numpy(made.images)


def main() -> None:
    device = get_device()
    print("device:", device)
    model, scheduler = tiny_unet().to(device), DDIMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    random = torch.Generator().manual_seed(0)
    stripes = torch.linspace(-1, 1, 8).expand(16, 1, 8, 8)
    losses = []
    for _ in range(8):
        noise = torch.randn(stripes.shape, generator=random).to(device)
        steps = torch.randint(0, 100, (len(stripes),), generator=random).to(device)
        noisy = scheduler.add_noise(stripes.to(device), noise, steps)
        loss = torch.nn.functional.mse_loss(model(noisy, steps).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print("learns:", losses[-1] < losses[0])
    with tempfile.TemporaryDirectory() as folder:
        DDIMPipeline(model, scheduler).save_pretrained(folder)
        on_cpu = DDIMPipeline.from_pretrained(folder)
        on_device = DDIMPipeline.from_pretrained(folder).to(device)
    print("pipeline on:", on_device.device)
    print("pictures equal the CPU's:", torch.equal(pictures(on_device), pictures(on_cpu)))


if __name__ == "__main__":
    main()
