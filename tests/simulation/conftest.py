"""A small training run that several tests read."""

import pytest

from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.trace import read
from tests.simulation.training_runs import fsdp_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """4 ranks, data parallel 2 x tensor parallel 2, 3 steps."""
    return fsdp_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def traces(run_folder):
    return read(run_folder)


@pytest.fixture(scope="session")
def analysis(traces):
    return analyse(traces)
