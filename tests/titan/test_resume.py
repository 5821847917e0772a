"""A run whose rank was killed goes on from its last checkpoint, on another layout, as if nothing had happened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.launched import Launched, launched

from .torchrun import needs_neuron

STEPS, KILLED, INTERVAL = 10, 7, 5
DYING = f"""
import os, signal, sys
from neuron_dist.simulation import session
from neuron_dist.titan.run import main

steps, end_step = 0, session.end_step

def end_step_or_die():
    global steps
    end_step()
    steps += 1
    if steps == {KILLED} and os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL)

session.end_step = end_step_or_die
sys.exit(main())
"""


def settings(folder: str, shard: int, tensor: int) -> list[str]:
    return [
        f"dump_folder={folder}",
        f"training.steps={STEPS}",
        "training.seq_len=64",
        "training.local_batch_size=1",
        "training.global_batch_size=4",
        f"parallelism.data_parallel_shard_degree={shard}",
        f"parallelism.tensor_parallel_degree={tensor}",
        "checkpoint.enable=true",
        f"checkpoint.interval={INTERVAL}",
    ]


def losses(run: Launched) -> dict[int, float]:
    text = re.sub(r"\x1b\[[\d;]*m", "", run.out + run.err)
    return {int(s): float(x) for s, x in re.findall(r"step: +(\d+) +loss: +([\d.]+)", text)}


@needs_neuron
@pytest.mark.timeout(880)
def test_a_killed_run_goes_on_with_other_degrees(tmp_path: Path) -> None:
    train = ("train", "llama3_parity", "-n", "4", "--set")
    whole = launched(tmp_path, *train, *settings("whole", 4, 1), timeout=280)
    assert whole.code == 0, whole.err
    expected = losses(whole)
    assert sorted(expected) == list(range(1, STEPS + 1))

    (tmp_path / "dying.py").write_text(DYING)
    run = ("run", "-n", "4", "dying.py", "--recipe", "llama3_parity", "--set")
    killed = launched(tmp_path, *run, *settings("killed", 4, 1), timeout=280)
    assert killed.code == 1
    assert re.search(r"rank 2 \(pid \d+\) failed first: ended by SIGKILL", killed.err)
    assert [p.name for p in (tmp_path / "killed" / "checkpoint").iterdir()] == [f"step-{INTERVAL}"]
    assert sorted(losses(killed)) == list(range(1, KILLED + 1))

    resumed = launched(tmp_path, *train, *settings("killed", 2, 2), timeout=280)
    assert resumed.code == 0, resumed.err
    found = losses(resumed)
    assert sorted(found) == list(range(INTERVAL + 1, STEPS + 1))
    for step, loss in found.items():
        assert loss == pytest.approx(expected[step], abs=1e-3)
