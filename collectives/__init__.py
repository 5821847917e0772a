"""The network library: torch-free descriptions of clusters and, on them, of collective schedules.

``topology/`` holds products (chips, logical cores, memory) as data with a source for each number. Nothing in
this package imports torch or the packages above it (``neuron_dist``, ``launch``).
"""
