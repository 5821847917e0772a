import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch

from neuron_dist import _C


@pytest.fixture
def run_child() -> Callable[..., str]:
    """Runs Python source in a fresh process, for what needs a virgin device: forks, binding, environment."""

    def run(source: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def capacity() -> Iterator[Callable[[int], None]]:
    """Sets a small HBM for one test, on an empty cache."""
    torch.neuron.empty_cache()
    yield _C._set_capacity_for_testing
    _C._set_capacity_for_testing(0)
    torch.neuron.empty_cache()
