"""The c10d backend ``neuron``: its registration, and what the native engine asks of Python.

``backend.py`` creates process groups; importing this package registers the backend and nothing more.
"""

from neuron_dist._C import Options
from neuron_dist.distributed.backend import register

__all__ = ["Options", "register"]
