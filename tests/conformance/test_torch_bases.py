"""Torch's base classes for tests in several processes (``tests/conformance/torch_bases.py``), in a process of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bases_of_the_wheel() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance.torch_bases"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None and int(ran[1]) == 6 and "skipped" not in done.stderr, done.stderr[
        -2000:
    ]
    print(ran[0])
