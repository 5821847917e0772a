"""kernels: a layer of a model is replaced by the variant that a kernel repository has for Neuron.

The repository is a folder made here; one on the Hub is found the same way, by ``LayerRepository``.

python examples/ecosystem/hub_kernels.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from kernels import (
    LocalLayerRepository,
    Mode,
    kernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels.backends import _backend


@use_kernel_forward_from_hub("Scale")
class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


LAYERS = '''
import torch


class Scale(torch.nn.Module):
    """Adds 1 more, so that it can be told from the layer that it replaces."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1
'''


def repository(folder: Path) -> Path:
    """A kernel repository with one variant: any torch, Neuron."""
    variant = folder / "build" / "torch-neuron"
    variant.mkdir(parents=True)
    about = {"id": "scale-example", "name": "scale", "version": 1, "license": "Apache-2.0"}
    about |= {"python-depends": [], "backend": {"type": "neuron"}}
    (variant / "metadata.json").write_text(json.dumps(about))
    (variant / "layers.py").write_text(LAYERS)
    (variant / "__init__.py").write_text("from . import layers\n\n__all__ = ['layers']\n")
    return folder


def main() -> None:
    print("backend:", _backend().name)
    model = torch.nn.Sequential(Scale()).to("neuron")
    x = torch.ones(2, device="neuron")
    print("before:", *model(x).tolist())
    with tempfile.TemporaryDirectory() as folder:
        layer = LocalLayerRepository(repository(Path(folder)), layer_name="Scale")
        with use_kernel_mapping({"Scale": {"neuron": layer}}):
            model = kernelize(model, mode=Mode.INFERENCE, device="neuron")
        print("after:", *model(x).tolist())


if __name__ == "__main__":
    main()
