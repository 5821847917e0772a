"""The network library: torch-free descriptions of clusters and, on them, of collective schedules.

    cluster = load_cluster("trn2.48xlarge", instances=2)
    p = plan("all_reduce", 4 << 20, range(128), cluster)
    p.algorithm, p.time_ns, p.programs, p.bytes_per_link, p.rejected

A collective is a schedule (:mod:`collectives.schedule`) that an algorithm builds for a group of ranks, that is
proved, priced on the cluster's links and compiled for the native engine. Nothing in this package imports torch or
the packages above it (``neuron_dist``, ``launch``).
"""

from typing import Any

__all__ = ["load_cluster", "plan"]


def __getattr__(name: str) -> Any:  # not at import: numpy and yaml take their time
    if name == "plan":
        from collectives.planner import plan

        return plan
    if name == "load_cluster":
        from collectives.topology import load_cluster

        return load_cluster
    raise AttributeError(f"module 'collectives' has no attribute {name!r}")
