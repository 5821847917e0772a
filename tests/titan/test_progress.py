"""What a run says of its end."""

import types

import pytest

from neuron_dist.titan import progress
from neuron_dist.titan.progress import Progress
from neuron_dist.titan.summary import Recorder


def test_the_time_left_counts_down_within_a_step(monkeypatch):
    now = types.SimpleNamespace(s=100.0)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now.s))
    of = Progress(rank=0, steps=4, recorder=Recorder(), device="cpu")
    assert of.left_s() is None
    of.step_ended(1)
    assert of.line() == ""  # nobody knows how long the first one took
    now.s += 10
    of.step_ended(2)
    assert of.left_s() == 20.0
    now.s += 9  # TorchTitan logs a step shortly before it ends
    assert of.line() == "  ETA: 0:00:11"
    now.s += 1
    of.step_ended(3)
    now.s += 12
    assert of.left_s() == 0.0
    of.step_ended(4)
    assert of.left_s() == pytest.approx(0.0)
