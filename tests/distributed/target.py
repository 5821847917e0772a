"""What the tests in this folder run on: backend ``neuron`` with both devices, or Gloo where told so.

``NEURON_DIST_TEST_BACKEND=gloo`` checks the tests themselves against a second implementation: what Gloo cannot do
is left out there.
"""

import os

import pytest
import torch

from neuron_dist.testing import run_ranks

BACKEND = os.environ.get("NEURON_DIST_TEST_BACKEND", "neuron")
HAS_DEVICE = hasattr(torch, "neuron") and BACKEND == "neuron"
DEVICES = [
    "cpu",
    pytest.param("neuron", marks=pytest.mark.skipif(not HAS_DEVICE, reason="no torch.neuron")),
]

IN_RANKS = [
    pytest.mark.neuron(backend=BACKEND),
    pytest.mark.filterwarnings("ignore:fidelity"),  # what Trainium would refuse is not the matter here
]
"""Marks of tests that run in ranks; the number of ranks is each test's own."""

neuron_only = pytest.mark.skipif(BACKEND != "neuron", reason=f"{BACKEND} cannot do this")


def launch(world_size, fn, *args, **options):
    """:func:`run_ranks` on the backend under test."""
    options.setdefault("backend", BACKEND)
    return run_ranks(world_size, fn, *args, **options)
