"""Simulated time of a recipe: the summary's lines, the trace, and that nothing of the machine shows in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuron_dist.simulation.trace import Kind, RankTrace, names_of, read

from .torchrun import Run, needs_neuron, torchrun_train

SHORT = ["training.steps=3", "lr_scheduler.warmup_steps=1", "lr_scheduler.decay_ratio=null"]


def train(folder: Path) -> tuple[Run, list[RankTrace]]:
    layout = ["launch.ranks=4", "training.seq_len=64", "training.local_batch_size=1"]
    run = torchrun_train(
        folder, 4, "llama3_debug", *layout, *SHORT, backend="neuron", device="neuron"
    )
    assert run.status == 0, run.output
    return run, read(folder / "trace")


def timed(trace: RankTrace) -> list[tuple[object, ...]]:
    """Everything with a beginning and an end: kernels in the program's order, collectives by group and number."""
    kernels = trace.of(Kind.KERNEL)
    columns = (kernels["stream"], kernels["start_ns"], kernels["end_ns"])
    found: list[tuple[object, ...]] = list(
        zip(names_of(trace, kernels), *map(np.ndarray.tolist, columns), strict=True)
    )
    collectives = trace.of(Kind.COLLECTIVE)
    collectives = collectives[np.lexsort((collectives["a"], collectives["group"]))]
    found += collectives[["group", "a", "b", "start_ns", "end_ns"]].tolist()
    return found + trace.of(Kind.STEP)[["a", "start_ns", "end_ns", "b", "c", "d", "e"]].tolist()


@needs_neuron
@pytest.mark.timeout(600)
def test_a_recipe_takes_the_same_time_on_an_idle_and_on_a_loaded_machine(tmp_path: Path) -> None:
    run, idle = train(tmp_path / "idle")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        _, loaded = train(tmp_path / "loaded")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for a, b in zip(idle, loaded, strict=True):
        assert len(a.of(Kind.STEP)) == 3
        assert timed(a) == timed(b)
    summary = run.output[run.output.index("  simulated  ") :].splitlines()
    named = {line.split("  ")[1]: line for line in summary if line.startswith("  ")}
    assert len([line for line in summary if line.strip()]) <= 10
    for name in ("step time", "exposed", "MFU", "hot link"):
        assert name in named
    assert f"neuron-dist report {tmp_path}/idle/trace" in named["trace"]
    step = idle[0].of(Kind.STEP)[-1]
    assert 0 < step["b"] + step["c"] <= step["end_ns"] - step["start_ns"]
