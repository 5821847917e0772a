"""Options that all tests share."""

import os

from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NEURON_DIST_SUMMARY", "off")  # the test process trains, too
