"""Where the ranks of a group stand on the cluster: what group shapes are judged by."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from collectives.topology import Cluster

__all__ = ["Placement", "placement"]


@dataclass(frozen=True)
class Placement:
    """The shape of a group. The order of its ranks plays no role."""

    size: int
    instances: int
    """What NeuronLink joins is one instance, so a whole UltraServer."""
    chips: int
    symmetric: bool
    """Every instance of the group holds the same logical cores of it."""
    layout: str
    """``"4x16"``: 16 logical cores of each instance, each 4 after the one before: the peers of 4-way tensor parallel
    groups of adjacent cores, so the layout "TP x rest" has this name. ``"1x8"`` are 8 adjacent cores. Empty where
    the steps differ, or the instances."""
    stride: int
    """The first number of the layout; 0 without one."""
    cores: str
    """``"0-15"``: the cores of each instance, if adjacent; else empty."""


def placement(ranks: tuple[int, ...], cluster: Cluster) -> Placement:
    """The shape of the group of these global ranks; raises ``ClusterError`` for a rank without a core."""
    cores = sorted(cluster.core_of(rank) for rank in ranks)
    per_instance = cluster.cores_per_instance
    on_instance: dict[int, list[int]] = {}
    for core in cores:
        on_instance.setdefault(core // per_instance, []).append(core % per_instance)
    local, *others = on_instance.values()
    symmetric = all(other == local for other in others)
    steps = {b - a for a, b in pairwise(local)} or {1}
    stride = steps.pop() if symmetric and len(steps) == 1 else 0
    return Placement(
        size=len(ranks),
        instances=len(on_instance),
        chips=len({core // cluster.logical_cores_per_chip for core in cores}),
        symmetric=symmetric,
        layout=f"{stride}x{len(local)}" if stride else "",
        stride=stride,
        cores=f"{local[0]}-{local[-1]}" if stride == 1 else "",
    )
