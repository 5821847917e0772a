"""Torch's base classes for tests in several processes (``tests/conformance/torch_bases.py``), in a process of their own."""

import pytest

from tests import torch_main


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bases_of_the_wheel() -> None:
    done = torch_main.run(["-m", "tests.conformance.torch_bases"], timeout=570, OMP_NUM_THREADS="1")
    ran = torch_main.tests_in(done)
    assert ran == 6 and "skipped" not in done.stderr, done.stderr[-2000:]
    print(f"Ran {ran} tests")
