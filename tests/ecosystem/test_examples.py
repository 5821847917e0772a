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
    "lora": ["transformers", "peft"],
    "trainer": ["transformers", "accelerate"],
}


def run(example, ranks=1):
    for package in NEEDS[example]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra: ecosystem)")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    done = subprocess.run(
        [sys.executable, *(launch if ranks > 1 else []), str(FOLDER / f"{example}.py")],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
        capture_output=True,
        text=True,
        timeout=110,
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
    ("ranks", "kind", "device"), [(1, "NO", "neuron"), (2, "MULTI_NEURON", "neuron:0")]
)
def test_accelerate(ranks, kind, device):
    said = run("accelerate_training", ranks)
    assert (said["type"], said["device"], said["ranks"]) == (kind, device, str(ranks))
    assert said["learns"] == said["random numbers go on where they were"] == "True"


def test_lora():
    said = run("lora")
    assert said["adapters on"] == "{'neuron'}"
    assert said["learns"] == said["loaded adapters give the same logits"] == "True"
    assert said["merged weights too"] == "True"
