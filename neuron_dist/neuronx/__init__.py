"""neuron-dist under AWS's name: what ``import torch_neuronx`` gives where the real package is not installed.

real.py        is the real one installed?
alias.py       the names of ``torch_neuronx``, and where they come from
metadata.py    its version for ``importlib.metadata``
streams.py     the classes Stream and Event
operators.py   which operators ran, and which TorchNeuron would run on the CPU
profiling.py   ``torch_neuronx.profiling``
"""
