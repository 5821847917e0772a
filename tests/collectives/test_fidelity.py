"""One parameter set a product reproduces AWS's published points."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def fidelity():
    file = Path(__file__).parents[2] / "benchmarks" / "fidelity.py"
    spec = importlib.util.spec_from_file_location("fidelity", file)
    module = sys.modules["fidelity"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_published_points(fidelity, monkeypatch):
    monkeypatch.delenv("NEURON_DIST_ALGORITHM", raising=False)
    totals = fidelity.summary(fidelity.results())
    assert totals["points"] >= 45
    assert totals["median_error_percent"] <= 15
    assert totals["above_50_percent_without_reason"] == 0
    assert totals["algorithms_shown"] == 8 and totals["algorithms_that_differ"] == 0


def test_at_most_8_fitted_parameters(fidelity):
    assert len(fidelity.fitted()) <= 8
