"""Torch's own mechanism for tests of any device, on ``neuron``: ``instantiate_device_type_tests`` and what hangs on it.

It is a switch of torch's, read once when it is imported, so the tests run in a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "device_type_suite.py"


def test_generic_tests_run_on_the_device() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "neuron"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None and int(ran[1]) > 50, done.stderr[-1000:]
    assert done.stdout.split() == ["neuron:0"]
