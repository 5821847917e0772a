"""Training steps on neuron and on the CPU: TorchTitan's Llama 3 in its debug size, and two smaller models."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.device_timing import DEVICES, Timing

Step = Callable[[], torch.Tensor]
"""Trains one step and returns its loss."""
Build = Callable[[str], Step]


@dataclass(frozen=True)
class Row:
    cpu_ms: float
    neuron_ms: float
    ratio: float
    """Median of the ratios of steps that ran one after the other."""
    equal_losses: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(timing: Timing, build: Build, count: int) -> Row:
    """``count`` steps on each device in turns; the first two, which allocate, do not count."""
    steps = {device: build(device) for device in DEVICES}
    seconds: dict[str, list[float]] = {device: [] for device in DEVICES}
    losses: dict[str, list[float]] = {device: [] for device in DEVICES}
    for turn in range(count + 2):
        for device in DEVICES if turn % 2 == 0 else DEVICES[::-1]:
            start = timing.clock()
            losses[device].append(steps[device]().item())
            seconds[device].append(timing.clock() - start)
    cpu, neuron = (seconds[device][2:] for device in DEVICES)
    return Row(
        statistics.median(cpu) * 1e3,
        statistics.median(neuron) * 1e3,
        statistics.median(n / c for c, n in zip(cpu, neuron, strict=True)),
        losses["cpu"] == losses["neuron"],
    )


# --- TorchTitan's debug model ----------------------------------------------------------------------------------------


def llama(device: str) -> Step:
    """The recipe llama3_debug on one rank: TorchTitan's model, checkpointing, loss and optimizer, without its trainer."""
    from torchtitan.config.override import apply_overrides
    from torchtitan.distributed.utils import clip_grad_norm_

    from neuron_dist.titan import shims
    from neuron_dist.titan.check import check

    one_rank = [
        f"{key}=1"
        for key in (
            "launch.ranks",
            "parallelism.data_parallel_shard_degree",
            "parallelism.tensor_parallel_degree",
        )
    ]
    config = check("llama3_debug", one_rank, ranks=1).config
    shims.build_block_masks_eagerly()
    apply_overrides(config.override, config)
    torch.manual_seed(0)
    built = config.model_spec.model.build()
    built.init_weights(buffer_device=None)
    config.activation_checkpoint.build(dump_folder=config.dump_folder).apply(built)
    model = built.to(device)
    loss_of = config.loss.build(compile_config=config.compile)
    loss_of.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    optimizer = config.optimizer.build(model_parts=[model])
    shape = (config.training.local_batch_size, config.training.seq_len + 1)
    data = torch.Generator().manual_seed(0)

    def step() -> torch.Tensor:
        tokens = torch.randint(config.model_spec.model.vocab_size, shape, generator=data).to(device)
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        positions = torch.arange(inputs.shape[1], device=device).expand_as(inputs)
        optimizer.zero_grad()
        masks = model.get_attention_masks(positions=positions)
        prediction = model(inputs, positions=positions, attention_masks=masks)
        loss, _ = loss_of(prediction, labels, torch.tensor(labels.numel(), device=device))
        loss.backward()
        clip_grad_norm_(model.parameters(), config.training.max_norm, foreach=True)
        optimizer.step()
        return loss

    return step


# --- a residual convolutional network --------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            conv = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def residual_network() -> nn.Module:
    """ResNet-18's layers at a quarter of its width, for images of 32x32 in ten classes."""
    width = 16
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    channels = width
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Residual(channels, width << stage, stride))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def convolutions(device: str) -> Step:
    torch.manual_seed(0)
    model = residual_network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    data = torch.Generator().manual_seed(0)

    def step() -> torch.Tensor:
        images = torch.randn(16, 3, 32, 32, generator=data).to(device)
        labels = torch.randint(10, (16,), generator=data).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


# --- torch's own Transformer -----------------------------------------------------------------------------------------


def transformer(device: str, foreach: bool) -> Step:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach)
    x = torch.randn(8, 128, 256, generator=torch.Generator().manual_seed(1)).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


PROGRAMS: dict[str, Build] = {
    "TorchTitan's Llama 3 debug model": llama,
    "residual convolutions, SGD": convolutions,
    "Transformer, AdamW for-loop": lambda device: transformer(device, foreach=False),
    "Transformer, AdamW foreach": lambda device: transformer(device, foreach=True),
}
