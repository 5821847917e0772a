"""Whether AWS's own torch_neuronx is installed. neuron-dist never stands in for it, and stays out of its way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["find"]


def find() -> Path | None:
    """The folder of the real ``torch_neuronx``, or None.

    Its wheels (native and XLA alike) install a folder with an ``__init__.py``; ours is a single file. No module is
    imported and no metadata read, since this runs at every ``import torch``.
    """
    for entry in sys.path:
        folder = os.path.join(entry or os.getcwd(), "torch_neuronx")
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            return Path(folder)
    return None
