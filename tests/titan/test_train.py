"""What a run prints, on which rank, and with which exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .torchrun import needs_neuron, torchrun_train


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "device", "memory"),
    [
        ("gloo", "cpu", "GiB resident"),
        pytest.param("neuron", "neuron", "GiB of neuron memory", marks=needs_neuron),
    ],
    ids=["gloo", "neuron"],
)
def test_a_run_prints_rank_0_and_ends_with_a_summary(
    tmp_path: Path, backend: str, device: str, memory: str
) -> None:
    layout = ["launch.ranks=2", "parallelism.data_parallel_shard_degree=1"]
    short = ["training.steps=3", "lr_scheduler.warmup_steps=1", "lr_scheduler.decay_ratio=null"]
    run = torchrun_train(
        tmp_path / "out", 2, "llama3_debug", *layout, *short, backend=backend, device=device
    )
    assert run.status == 0, run.output
    assert len(run.losses) == 3
    assert run.losses[2] < run.losses[0]
    assert run.output.count("Training starts at step 1") == 1
    assert "WARNING" not in run.output
    assert "Warning" not in run.output
    summary = run.output[run.output.index("  recipe  ") :]
    assert "llama3_debug, 2 ranks: tensor 2" in summary
    assert f"device {device}, backend {backend}, trn2.48xlarge (LNC 2)" in summary
    assert "steps   1 to 3" in summary
    assert f"loss    {run.losses[0]:.5f} -> {run.losses[2]:.5f}" in summary
    assert "s a step (median)" in summary
    assert f"{memory}, peak of rank" in summary
    assert f"{tmp_path}/out/logs/rank_*.log" in summary
    for rank in (0, 1):
        log = (tmp_path / "out" / "logs" / f"rank_{rank}.log").read_text()
        assert "Training starts at step 1" in log


@pytest.mark.timeout(600)
def test_a_wrong_recipe_is_told_once_and_ends_every_rank_with_2(tmp_path: Path) -> None:
    run = torchrun_train(tmp_path / "out", 2, "llama3_debug", "launch.ranks=2", "training.stepz=5")
    assert run.status != 0
    assert run.output.count("--set: training.stepz: 5") == 1
    assert "did you mean 'steps'" in run.output
    assert run.output.count("exitcode  : 2") == 2
    assert "neuron_dist/" not in run.output  # no frame of ours
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(600)
def test_own_text_on_one_rank_without_torchrun(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A line of my own book, which is long enough.\n" * 400)
    command = [
        *(
            sys.executable,
            "-m",
            "neuron_dist.train",
            "--recipe",
            "llama3_parity",
            "--backend",
            "gloo",
            "--device",
            "cpu",
        ),
        *(
            "--set",
            "data={corpus: null, path: book.txt}",
            "training.steps=2",
            "training.seq_len=64",
        ),
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "Preparing path dataset from" in done.stdout
    assert "steps   1 to 2" in done.stdout


@needs_neuron
@pytest.mark.timeout(600)
def test_the_device_is_one_of_the_cluster(tmp_path: Path) -> None:
    settings = ["cluster.product=trn1.32xlarge", "training.steps=1", "training.seq_len=64"]
    run = torchrun_train(
        tmp_path / "out", 1, "llama3_parity", *settings, backend="neuron", device="neuron"
    )
    assert run.status == 0, run.output
    assert "with 16.00GiB memory" in run.output
    assert "Peak FLOPS used for computing MFU: 9.200e+13" in run.output
