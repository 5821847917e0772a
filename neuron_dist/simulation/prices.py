"""What a run's operations cost on a cluster, and what they need of its links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectives.algorithms import algorithms_for, lookup
from collectives.group import Group
from collectives.planner import Plan, plan
from collectives.topology import Cluster, ClusterError, load_cluster, topology_of
from collectives.traffic import first_link
from neuron_dist._C import rounded_up, size_class
from neuron_dist.simulation.flows import Demand
from neuron_dist.simulation.operations import Operation
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import RankTrace

__all__ = ["Cost", "Prices", "recorded_cluster", "same_cluster"]

OWN_SIZES = ("all_to_all", "gather", "scatter")
"""Of which a rank knows its own sizes only."""

LONGEST_NAME = 31
"""Characters of an algorithm's name that the engine notes (``OpInfo::algorithm``); longer ones are cut."""


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
    """Prices operations as a process group does (``csrc/distributed/process_group.cpp``); equal ones once.

    All ranks take the account of the group's first rank; where each knows only its own sizes, the dearest.
    """

    def __init__(self, cluster: Cluster, roofline: Roofline, *, keep_algorithms: bool) -> None:
        """``keep_algorithms``: price the algorithms that the run used rather than those chosen for ``cluster``."""
        self.cluster, self.keep = cluster, keep_algorithms
        self.topology = topology_of(cluster)
        self.copy = replace(roofline, launch_ns=0.0)
        """A message to oneself reads and writes HBM and is no operator."""
        self.notes: dict[str, None] = {}
        """What could not be kept, in order, each once."""
        self._known: dict[tuple[str, tuple[int, ...], int, tuple[int, ...], str], Cost] = {}

    def of(self, operation: Operation) -> Cost:
        """Raises :class:`ScheduleError` for an unknown op, :class:`ClusterError` for a rank without a core."""
        ranks = operation.ranks
        algorithm = operation.algorithm if self.keep else ""
        key = operation.op, _accounts(operation), operation.root, ranks, algorithm
        if key not in self._known:
            self._known[key] = self._price(*key, message=operation.channel is not None)
        return self._known[key]

    def _price(
        self, op: str, accounts: tuple[int, ...], root: int, ranks: tuple[int, ...], algorithm: str, message: bool
    ) -> Cost:  # fmt: skip
        if message and len(set(ranks)) == 1:
            return Cost(self.copy.duration_ns(0, 2 * accounts[0]))
        if len(ranks) == 1:
            return Cost(0)
        first = plan(op, size_class(accounts[0]), ranks, self.cluster, root=root)
        kept = self._usable(first, algorithm, ranks)
        costs = []
        for nbytes in accounts:
            chosen = plan(op, size_class(nbytes), ranks, self.cluster, root=root, algorithm=kept)
            costs.append(self._cost(chosen, nbytes, ranks))
        return replace(max(costs, key=lambda c: c.total_ns), algorithm=costs[0].algorithm)

    def _cost(self, planned: Plan, nbytes: int, ranks: Sequence[int]) -> Cost:
        price, latency = planned.ready.pricer.price(nbytes), planned.ready.pricer.price(0).time_ns
        total_ns = _rounded(price.time_ns)
        latency_ns = min(_rounded(latency), total_ns)
        used = np.flatnonzero(price.bytes_by_link)
        links, carried = used + first_link(ranks, self.cluster), price.bytes_by_link[used]
        demand = None
        if total_ns > latency_ns and len(links):
            busy_ns = carried / self.topology.link_Bps[links] * 1e9
            need = np.minimum(busy_ns / (price.time_ns - latency), 1.0)
            demand = Demand(len(self._known), links, need)
        return Cost(total_ns, latency_ns, planned.algorithm, demand, (links, carried))

    def _usable(self, chosen: Plan, algorithm: str, ranks: Sequence[int]) -> str | None:
        """The algorithm to ask the planner for, to price what the run used; None leaves it the choice."""
        if not algorithm or chosen.algorithm[:LONGEST_NAME] == algorithm:
            return None
        op, group = chosen.op, Group(self.cluster, ranks)
        cut = len(algorithm) == LONGEST_NAME
        known = [
            a.name
            for a in algorithms_for(op)
            if a.name == algorithm or (cut and a.name.startswith(algorithm))
        ]
        usable = [name for name in known if not lookup(name, op).refuses(op, group)]
        if len(usable) > 1:
            self._note(f"{op} ran as one of {', '.join(usable)}: priced as {usable[0]}")
        elif not usable:
            why = lookup(known[0], op).refuses(op, group) if known else "it is not registered"
            self._note(
                f"{op} ran as {algorithm!r}, which cannot be used here ({why}): priced as {chosen.algorithm}"
            )
        return usable[0] if usable else None

    def _note(self, text: str) -> None:
        self.notes[text] = None


def _accounts(operation: Operation) -> tuple[int, ...]:
    """Bytes that are priced, the first rank's first."""
    sizes = {
        rank: rounded_up(nbytes) if uneven else nbytes
        for rank, (nbytes, uneven) in operation.sizes.items()
    }
    first = sizes.get(operation.ranks[0], max(sizes.values(), default=0))
    others = sorted(set(sizes.values()) - {first}) if operation.op in OWN_SIZES else []
    return first, *others


def _rounded(time_ns: float) -> int:
    return math.floor(time_ns + 0.5)
