"""examples/: each is run, in ranks that are forked; one by torchrun, too, as its first lines say."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SAID = {
    "ddp": "",
    "ddp --backend gloo --device cpu": "",
    "fsdp2": "",
    "tensor_parallel": "",
    "pipeline": "",
    "custom_algorithm": "",
    "quick_tour": "",
}


@pytest.mark.neuron(backend=None, timeout=100)
@pytest.mark.parametrize(
    "example, world_size, speaker",
    [
        ("ddp", 4, 0),
        ("ddp --backend gloo --device cpu", 2, 0),
        ("fsdp2", 4, 0),
        ("tensor_parallel", 4, 0),
        ("pipeline", 4, 3),
        ("custom_algorithm", 8, 0),
        ("quick_tour", 1, 0),
    ],
)
def test_example(example, world_size, speaker, rank, monkeypatch, capsys):
    name, *arguments = example.split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    print(said)
