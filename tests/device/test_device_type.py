"""Torch's own mechanism for tests of any device, on ``neuron``: ``instantiate_device_type_tests`` and what hangs on it.

It is a switch of torch's, read once when it is imported, so the tests run in a process of their own.
"""

from pathlib import Path

from tests import torch_main

PROGRAM = Path(__file__).parent / "device_type_suite.py"


def test_generic_tests_run_on_the_device() -> None:
    done = torch_main.run([str(PROGRAM)], timeout=280, PYTORCH_TESTING_DEVICE_ONLY_FOR="neuron")
    assert torch_main.tests_in(done) > 50
    assert done.stdout.split() == ["neuron:0"]
