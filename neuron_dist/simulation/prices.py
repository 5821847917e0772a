"""What a run's operations cost on a cluster, and what they need of its links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectives.algorithms import lookup
from collectives.group import Group
from collectives.planner import Plan, plan
from collectives.schedule import ScheduleError
from collectives.topology import Cluster, ClusterError, load_cluster, topology_of
from neuron_dist.simulation.flows import Demand
from neuron_dist.simulation.operations import Operation
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import RankTrace

__all__ = ["Cost", "Prices", "recorded_cluster", "same_cluster"]


@dataclass(frozen=True, eq=False)
class Cost:
    """One operation alone on the network, from the last arrival."""

    total_ns: int
    latency_ns: int = 0
    """The part of ``total_ns`` that it would take with no bytes; its transfer follows."""
    algorithm: str = ""
    demand: Demand | None = None
    """Of the transfer; None where nothing moves over links."""
    link_bytes: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    """Directed links of the cluster's topology, and the bytes over each."""

    @property
    def transfer_ns(self) -> int:
        return self.total_ns - self.latency_ns


def recorded_cluster(trace: RankTrace) -> Cluster:
    """The cluster on which a run was recorded, from its header.

    Raises :class:`ClusterError` where the product's YAML is not there any more, or is another one than then.
    """
    said = trace.header["cluster"]
    advice = "--cluster names the product or YAML file to replay on"
    try:
        cluster = load_cluster(said["product"], said["instances"], said["lnc"])
    except ClusterError as error:
        raise ClusterError(
            f"{trace.path}: recorded on {said['name']!r}, which cannot be built here: {error}; {advice}"
        ) from None
    if cluster.digest != said["digest"]:
        raise ClusterError(
            f"{trace.path}: recorded on {said['name']!r} with digest {said['digest']}, but {said['product']}'s YAML has "
            f"changed since or is another one ({cluster.digest} here); {advice}"
        )
    return cluster


def same_cluster(trace: RankTrace, cluster: Cluster) -> bool:
    """Whether a run was recorded on this cluster, but for the number of instances, on which no price depends."""
    said = trace.header["cluster"]
    return (cluster.digest, cluster.lnc, cluster.mapping) == (said["digest"], said["lnc"], None)


class Prices:
    """Prices operations; those of equal op, bytes, root and ranks once."""

    def __init__(self, cluster: Cluster, roofline: Roofline, *, keep_algorithms: bool) -> None:
        """``keep_algorithms``: price the algorithms that the run used rather than those chosen for ``cluster``."""
        self.cluster, self.keep = cluster, keep_algorithms
        self.topology = topology_of(cluster)
        self.copy = replace(roofline, launch_ns=0.0)
        """A message to oneself reads and writes HBM and is no operator."""
        self.notes: dict[str, None] = {}
        """What could not be kept, in order, each once."""
        self._known: dict[tuple[str, int, int, tuple[int, ...], str], Cost] = {}

    def of(self, operation: Operation) -> Cost:
        """Raises :class:`ScheduleError` for an unknown op, :class:`ClusterError` for a rank without a core."""
        ranks = operation.ranks
        algorithm = operation.algorithm if self.keep else ""
        key = operation.op, operation.nbytes, operation.root, ranks, algorithm
        if key not in self._known:
            self._known[key] = self._price(operation, ranks, algorithm)
        return self._known[key]

    def _price(self, operation: Operation, ranks: tuple[int, ...], algorithm: str) -> Cost:
        op, nbytes = operation.op, operation.nbytes
        if operation.channel is not None and len(set(ranks)) == 1:
            return Cost(self.copy.duration_ns(0, 2 * nbytes))
        if len(ranks) == 1:
            return Cost(0)
        chosen = self._usable(op, algorithm, ranks)
        planned = plan(op, nbytes, ranks, self.cluster, root=operation.root, algorithm=chosen)
        latency = planned.ready.pricer.price(0).time_ns
        total_ns = _rounded(planned.time_ns)
        latency_ns = min(_rounded(latency), total_ns)
        links, carried = self._links(planned, ranks)
        demand = None
        if total_ns > latency_ns and len(links):
            busy_ns = carried / self.topology.link_Bps[links] * 1e9
            need = np.minimum(busy_ns / (planned.time_ns - latency), 1.0)
            demand = Demand(len(self._known), links, need)
        return Cost(total_ns, latency_ns, planned.algorithm, demand, (links, carried))

    def _usable(self, op: str, algorithm: str, ranks: Sequence[int]) -> str | None:
        """The algorithm to ask the planner for; None leaves it the choice."""
        if not algorithm or op == "send":
            return None
        try:
            why = lookup(algorithm, op).refuses(op, Group(self.cluster, ranks))
        except ScheduleError as error:
            why = str(error)
        if not why:
            return algorithm
        self.notes[f"{op} ran as {algorithm!r}, which cannot be used here ({why}): priced as chosen for the cluster"] = None
        return None

    def _links(self, planned: Plan, ranks: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Links of the whole cluster in use, and their bytes.

        Plans are shared by groups of one shape, whose cores are moved to begin in the first instance; instances are
        alike, and their links numbered one instance after the other.
        """
        moved = int(Group(self.cluster, ranks).cores[0] - planned.group.cores[0])
        shift = moved // self.cluster.cores_per_instance * self.topology.links_per_instance
        links = np.flatnonzero(planned.price.bytes_by_link)
        return links + shift, planned.price.bytes_by_link[links]


def _rounded(time_ns: float) -> int:
    return math.floor(time_ns + 0.5)
