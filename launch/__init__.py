"""The command line ``neuron-dist``. The top of the house: imports ``neuron_dist``, is imported by nothing.

    neuron-dist run           torchrun, with ranks that start in milliseconds
    neuron-dist train         a TorchTitan recipe
    neuron-dist recipes       the recipes that ship with the package
    neuron-dist check         whether a recipe is right and fits, without running it
    neuron-dist ls            the simulated cluster, as neuron-ls prints it
    neuron-dist nccom-test    prices of collectives, with nccom-test's arguments and columns
    neuron-dist explain       why a collective runs as it does
    neuron-dist report        what a run would have taken, from its trace: tables and a page
    neuron-dist trace         the same as a Chrome trace
    neuron-dist replay        a recorded run once more, with contention or on another cluster
    neuron-dist fidelity      what the real TorchNeuron would refuse

``pytest_plugin`` is the mark ``neuron``; pytest loads it by its entry point.

``run``, ``train`` and ``nccom-test --wall`` and ``--check`` start ranks. They and what reads traces import torch, with
``neuron_dist``.
"""
