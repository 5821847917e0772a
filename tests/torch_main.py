"""Runs a file of tests in torch's own form, whose main is ``torch.testing._internal.common_utils.run_tests``."""

import os
import re
import subprocess
import sys


def run(arguments: list[str], timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` in a process of its own, which may take ``timeout`` seconds, and assert that it passes."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        # with CI set, torch writes XML reports, by a package that nothing else here needs
        env={**os.environ, "CI": "", **environment},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done


def tests_in(done: subprocess.CompletedProcess[str]) -> int:
    """How many tests ``done`` ran, by unittest's closing line."""
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran is not None, done.stderr[-2000:]
    return int(ran[1])
