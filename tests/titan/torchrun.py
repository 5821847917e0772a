"""Starts real torchrun processes for tests, with a limit on their time and a look at what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

needs_neuron = pytest.mark.skipif(not hasattr(torch, "neuron"), reason="torch.neuron is not there")

ROOT = Path(__file__).parents[2]
_MARK = "NEURON_DIST_TEST_RUN"


@dataclass(frozen=True)
class Run:
    """A torchrun that has ended."""

    status: int
    output: str
    """What it wrote, without colours."""
    folder: Path
    """Its dump_folder."""

    @property
    def losses(self) -> list[float]:
        """Losses in the order of the steps, as the terminal showed them."""
        return [float(x) for x in re.findall(r"step: +\d+ +loss: +([\d.]+)", self.output)]


def torchrun_train(
    folder: Path,
    ranks: int,
    recipe: str,
    *settings: str,
    backend: str = "gloo",
    device: str = "cpu",
    timeout_s: int = 280,
) -> Run:
    """Trains ``recipe`` on ``ranks`` ranks; fails when it takes longer or leaves a process behind."""
    mark = uuid.uuid4().hex
    env = {**os.environ, _MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ),
        *("-m", "neuron_dist.train", "--recipe", recipe, "--backend", backend, "--device", device),
        *("--set", f"dump_folder={folder}", *settings),
    ]
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        try:
            output, _ = process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            for pid in _marked(mark):
                os.kill(pid, signal.SIGKILL)
            output, _ = process.communicate()
        raise AssertionError(f"still running after {timeout_s} s:\n{output[-4000:]}") from None
    deadline = time.monotonic() + 5
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} were left behind"
    return Run(process.returncode, re.sub(r"\x1b\[[\d;]*m", "", output), folder)


def _marked(mark: str) -> list[int]:
    """Processes of this run, found by its mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    wanted in (entry / "environ").read_bytes().split(b"\0")
                    and b"\nState:\tZ" not in (entry / "status").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
