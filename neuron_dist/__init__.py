"""A simulated AWS Trainium for PyTorch: device ``neuron`` and c10d backend ``neuron``, as real processes on CPUs.

``import torch`` is enough: torch finds this package through its ``torch.backends`` entry point. Importing it
registers the device and the backend, starts no thread and opens nothing.
"""

import functools
import importlib
import warnings

__all__: list[str] = []


@functools.cache
def _autoload() -> None:
    """Registers device and backend once; called by ``import torch`` (entry point ``torch.backends``).

    Stands before ``import torch`` below, since a program that imports this package first gets here from
    inside that import.
    """
    if place := importlib.import_module("neuron_dist.neuronx.real").find():
        warnings.warn(
            f"neuron-dist stays out: the real torch_neuronx is installed in {place} and its device is 'neuron', too. "
            "Uninstall one of the two to choose the other.",
            stacklevel=2,
        )
        return
    importlib.import_module("neuron_dist.device._register").register()
    importlib.import_module("neuron_dist.distributed").register()


import torch  # noqa: E402, F401

_autoload()
