"""Options that all tests share."""

import os
import tempfile

import pytest
from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NEURON_DIST_SUMMARY", "off")  # the test process trains, too


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory):
    """What a test's processes leave in the folder for temporary files (torchrun leaves one a run) goes with pytest's."""
    folder = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
