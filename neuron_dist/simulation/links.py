"""How busy each directed link was, and the hot one: the traffic of a run laid on the cluster's links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectives.algorithms import names
from collectives.schedule import OPS
from collectives.topology import Cluster, Topology, topology_of
from collectives.traffic import bytes_by_link
from neuron_dist.simulation.figures import RunFigures, Traffic

__all__ = ["LinkUse", "known", "link_use", "traffic_bytes"]


@dataclass(frozen=True, eq=False)
class LinkUse:
    """Simulated use of every directed link of the cluster."""

    topology: Topology
    nbytes: np.ndarray
    """[links] bytes over each."""
    within_ns: float
    """The simulated time in which they went."""
    unknown: tuple[str, ...]
    """Algorithms that are registered in the program but not here: their links are not counted."""

    @property
    def busy_ns(self) -> np.ndarray:
        """[links] how long each link's usable bandwidth takes for its bytes."""
        return self.nbytes / self.topology.link_Bps * 1e9

    @property
    def shares(self) -> np.ndarray:
        """[links] busy part of the time."""
        return self.busy_ns / self.within_ns if self.within_ns else np.zeros(len(self.nbytes))

    @property
    def hot(self) -> int | None:
        """The link that is busy longest; None if nothing moved."""
        return int(self.busy_ns.argmax()) if self.nbytes.any() else None

    def name(self, link: int) -> str:
        """``chip 3 -> chip 7``, ``instance 1 EFA of chip 0 out``."""
        return self.topology.link_names[link]

    def busiest(self, most: int) -> list[int]:
        """The busiest links in use, by falling time."""
        order = np.argsort(-self.busy_ns, kind="stable")[:most]
        return [int(link) for link in order if self.nbytes[link]]


def link_use(figures: RunFigures) -> LinkUse:
    """The links of the counted traffic; raises what :func:`collectives.plan` raises for an op that is none."""
    topology = topology_of(figures.cluster)
    total = np.zeros(len(topology.link_Bps), np.int64)
    unknown: dict[str, None] = {}
    for row in figures.traffic:
        if known(row):
            total += traffic_bytes(row, figures.cluster)
        else:
            unknown[row.algorithm] = None
    return LinkUse(topology, total, figures.traffic_ns, tuple(unknown))


def known(row: Traffic) -> bool:
    """Whether a schedule of this algorithm can be built here. One rank alone needs none, an empty name is Neuron's
    choice; an op that does not exist is not asked for here but refused by the planner."""
    return (
        len(row.ranks) < 2
        or not row.algorithm
        or row.op not in OPS
        or row.algorithm in names(row.op)
    )


def traffic_bytes(row: Traffic, cluster: Cluster) -> np.ndarray:
    """[links] bytes of one row of traffic."""
    if len(set(row.ranks)) < 2 or not row.nbytes:
        return np.zeros(len(topology_of(cluster).link_Bps), np.int64)
    return bytes_by_link(
        row.op, row.nbytes, row.ranks, cluster, root=row.root, algorithm=row.algorithm or None
    )
