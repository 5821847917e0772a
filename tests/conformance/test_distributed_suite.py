"""PyTorch's own distributed suite, run against backend ``neuron``: nothing that a complete backend passes is lost.

The suite's runner and the lists of tests to pass live beside the repository, in ``../shared/conformance``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SUITE = ROOT.parent / "shared" / "conformance"

pytestmark = pytest.mark.skipif(
    not (SUITE / "run_dist_suite.py").exists(), reason=f"PyTorch's suite is not there: {SUITE}"
)

SLOW_ON_CPU = r"test_ddp_uneven_inputs$"
"""Convolutions over 1000 x 1000 pictures: minutes, whatever the backend."""


def run_suite(tmp_path, profile, *arguments):
    """Runs one profile; the runner's status is 0 unless a test that should pass does not."""
    command = [
        sys.executable, SUITE / "run_dist_suite.py", "--backend", "neuron", "--import", "neuron_dist",
        "--profile", profile, "--json", tmp_path / "outcomes.json", "--log-dir", tmp_path / "logs", *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    tail = "\n".join(done.stdout.splitlines()[-60:])
    print(tail)
    return done.returncode, tail


@pytest.mark.timeout(900)
def test_full(tmp_path):
    status, tail = run_suite(
        tmp_path, "full", "--compare", SUITE / "targets" / "neuron_full_w4.json"
    )
    assert status == 0, tail


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shim(tmp_path):
    target = SUITE / "targets" / "neuron_shim_w4.json"
    status, tail = run_suite(tmp_path, "shim", "--compare", target, "--exclude", SLOW_ON_CPU)
    assert status == 0, tail


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shim_on_device(tmp_path):
    """Numbers only: what DDP's and SyncBatchNorm's CUDA tests do on the device."""
    run_suite(tmp_path, "shim", "--shim-device", "neuron", "--exclude", SLOW_ON_CPU)
