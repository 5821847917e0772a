"""examples/ecosystem: each is run as users run it; one is skipped only if the library that it shows is absent."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "ecosystem"
NEEDS = {
    "accelerate_training": ["transformers", "accelerate"],
    "device_map": ["transformers", "accelerate"],
    "diffusion": ["diffusers"],
    "hub_kernels": ["kernels"],
    "lora": ["transformers", "peft"],
    "sft": ["transformers", "trl"],
    "trainer": ["transformers", "accelerate"],
}
TORCHRUN = "torch.distributed.run --standalone --nproc-per-node {ranks}"
ACCELERATE = "accelerate.commands.launch --num_processes {ranks} --gpu_ids 0,1"


def run(example, ranks=1, launcher=TORCHRUN):
    for package in NEEDS[example]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra: ecosystem)")
    launch = ["-m", *launcher.format(ranks=ranks).split()] if ranks > 1 else []
    done = subprocess.run(
        [sys.executable, *launch, str(FOLDER / f"{example}.py")],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = (line.split(":", 1) for line in done.stdout.splitlines() if ": " in line)
    return {key: value.strip() for key, value in pairs}


def test_every_example_is_run():
    assert {file.stem for file in FOLDER.glob("*.py")} == {*NEEDS, "tiny"}


def test_device_map():
    said = run("device_map")
    assert said["device"] == "neuron:0"
    assert said["logits equal the CPU's"] == said["tokens equal the CPU's"] == "True"


@pytest.mark.parametrize("ranks", [1, 2])
def test_trainer(ranks):
    said = run("trainer", ranks)
    assert (said["device"], said["ranks"]) == ("neuron:0", str(ranks))
    assert len(said["losses"].split()) == 3 and said["learns"] == "True"


@pytest.mark.parametrize(
    ("ranks", "kind", "device", "launcher"),
    [
        (1, "NO", "neuron", TORCHRUN),
        (2, "MULTI_NEURON", "neuron:0", ACCELERATE),
    ],
)
def test_accelerate(ranks, kind, device, launcher):
    """accelerate's own launcher says by NEURON_RT_VISIBLE_CORES which cores it has been given."""
    said = run("accelerate_training", ranks, launcher)
    assert (said["type"], said["device"], said["ranks"]) == (kind, device, str(ranks))
    assert said["learns"] == said["random numbers go on where they were"] == "True"


def test_lora():
    said = run("lora")
    assert said["adapters on"] == "{'neuron'}"
    assert said["learns"] == said["loaded adapters give the same logits"] == "True"
    assert said["merged weights too"] == "True"


def test_trl():
    said = run("sft")
    assert (said["device"], said["batch"]) == ("neuron:0", "4 128")
    assert len(said["losses"].split()) == 3 and said["learns"] == "True"


def test_diffusers():
    said = run("diffusion")
    assert (said["device"], said["pipeline on"]) == ("neuron", "neuron:0")
    assert said["learns"] == said["pictures equal the CPU's"] == "True"


def test_kernels():
    said = run("hub_kernels")
    assert said == {"backend": "neuron", "before": "2.0 2.0", "after": "3.0 3.0"}
