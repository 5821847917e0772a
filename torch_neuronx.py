"""``import torch_neuronx`` where AWS's package is not installed: neuron-dist's device under the name that code asks for.

A module and not a package, on purpose. AWS's wheel installs a folder ``torch_neuronx/``: no file of one overwrites
a file of the other, and where both lie in one place Python takes the folder. Where this file is found although
the real package is installed further on, importing it raises ImportError: see :mod:`neuron_dist.neuronx.real`.
"""

import sys

from neuron_dist.neuronx import alias

alias.become(sys.modules[__name__])
