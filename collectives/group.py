"""Where a group's ranks stand on the cluster: chips, instances, the cycles through them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from collectives.topology import Cluster, ClusterError, Topology, topology_of

__all__ = ["Group"]

SEARCH_LIMIT = 20_000
"""Steps that the search for a cycle through a group's chips may take before it settles for a near one."""


class Group:
    """The ranks of a process group, on logical cores. Group rank i is the i-th of ``ranks``. Immutable."""

    def __init__(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        """Raises :class:`ClusterError` if there are no ranks, one occurs twice or the cluster has no core for it."""
        if not len(ranks):
            raise ClusterError("a group needs at least one rank")
        if len(set(ranks)) != len(ranks):
            twice = next(r for r in ranks if list(ranks).count(r) > 1)
            raise ClusterError(f"rank {twice} occurs twice in the group")
        self.cluster, self.size = cluster, len(ranks)
        self.cores = np.array([cluster.core_of(int(r)) for r in ranks], np.int64)

    @classmethod
    def on_cores(cls, cluster: Cluster, cores: Sequence[int]) -> Group:
        """A group by its logical cores, which must be the cluster's."""
        group = cls.__new__(cls)
        group.cluster, group.cores, group.size = cluster, np.array(cores, np.int64), len(cores)
        return group

    @property
    def topology(self) -> Topology:
        return topology_of(self.cluster)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The cores, moved to begin in the first instance: groups of one shape have the same schedules."""
        whole = self.cluster.cores_per_instance
        return tuple((self.cores - self.cores.min() // whole * whole).tolist())

    @cached_property
    def chip(self) -> np.ndarray:
        """Chip of each group rank, numbered through the cluster."""
        return self.cores // self.cluster.logical_cores_per_chip

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Chip -> its group ranks in the order of their cores; chips in order."""
        found: dict[int, list[int]] = {}
        for rank in np.argsort(self.cores):
            found.setdefault(int(self.chip[rank]), []).append(int(rank))
        return found

    @cached_property
    def ranks_per_chip(self) -> int:
        """0 where chips hold different numbers of ranks."""
        counts = {len(m) for m in self.members.values()}
        return counts.pop() if len(counts) == 1 else 0

    @property
    def fills_chips(self) -> bool:
        """Whether all ranks of each chip are in the group."""
        return self.ranks_per_chip == self.cluster.logical_cores_per_chip

    @cached_property
    def by_chip(self) -> np.ndarray:
        """[chips, ranks per chip] group ranks, chips in the order of their hypercube labels.

        Where the chips hold different numbers of ranks, each rank stands alone.
        """
        if not self.ranks_per_chip:
            return np.array([[r] for m in self.members.values() for r in m])
        labels = self.cluster.spec["network"]["labels"]
        local = self.cluster.chips_per_instance
        place = {chip: label for label, chip in enumerate(labels)} if labels else {}
        order = sorted(self.members, key=lambda c: (c // local, place.get(c % local, c % local)))
        return np.array([self.members[c] for c in order])

    @cached_property
    def instances(self) -> list[list[int]]:
        """Group ranks of each instance, in the order of their cores."""
        found: dict[int, list[int]] = {}
        for chip, ranks in self.members.items():
            found.setdefault(chip // self.cluster.chips_per_instance, []).extend(ranks)
        return list(found.values())

    @cached_property
    def symmetric(self) -> bool:
        """Whether every instance holds the same local cores."""
        whole = self.cluster.cores_per_instance
        return len({tuple((self.cores[m] % whole).tolist()) for m in self.instances}) == 1

    @cached_property
    def covers_chips(self) -> bool:
        """Whether the group is on every chip of each of its instances."""
        return len(self.members) == len(self.instances) * self.cluster.chips_per_instance

    def subgroup(self, ranks: Sequence[int] | np.ndarray) -> Group:
        """The group of some of the group ranks, in that order."""
        return Group.on_cores(self.cluster, self.cores[np.asarray(ranks)].tolist())

    @cached_property
    def chip_cycles(self) -> list[list[int]]:
        """The channels: for each a cyclic order of the group's chips. Neuron's rule gives their number.

        The edge-disjoint Hamiltonian cycles of the whole instance in both directions, or one cycle through the
        group's chips in both directions. Over several instances each is a chain through one after the other,
        and every channel crosses between other chips.
        """
        parameters, local = self.cluster.parameters, self.cluster.chips_per_instance
        full = self.covers_chips and len(self.members) > 1
        channels = parameters["channels_full_node" if full else "channels_other"]
        if self.size <= 2:
            channels = 1
        per_instance: dict[int, list[int]] = {}
        for chip in self.members:
            per_instance.setdefault(chip // local, []).append(chip % local)
        cycles = []
        for channel in range(channels):
            order: list[int] = []
            for instance, chips in per_instance.items():
                known = self.cluster.spec["network"]["cycles"] if full else []
                cycle = list(known[channel // 2 % len(known)]) if known else _cycle(self.cluster, tuple(chips))
                if channel % 2:
                    cycle = cycle[::-1]
                if len(per_instance) > 1:
                    turn = channel * len(cycle) // channels
                    cycle = cycle[turn:] + cycle[:turn]
                order += [instance * local + chip for chip in cycle]
            cycles.append(order)
        return cycles

    @cached_property
    def rings(self) -> np.ndarray:
        """[channels, size] group ranks in the order of each channel's ring."""
        orders = []
        for channel, cycle in enumerate(self.chip_cycles):
            turn = -1 if channel % 2 else 1
            orders.append([r for chip in cycle for r in self.members[chip][::turn]])
        return np.array(orders)


@lru_cache(maxsize=4096)
def _cycle(cluster: Cluster, chips: tuple[int, ...]) -> list[int]:
    """A cycle through chips of one instance: over single links if the search finds one, else by nearness."""
    hops = topology_of(cluster).hops()
    if cluster.spec["network"]["layout"] != "torus" or len(chips) < 4:
        return list(chips)
    wired = {a: [b for b in chips if hops[a, b] == 1] for a in chips}
    path, tried = [chips[0]], [iter(wired[chips[0]])]
    seen = {chips[0]}
    for _ in range(SEARCH_LIMIT):
        if len(path) == len(chips) and hops[path[-1], path[0]] == 1:
            return path
        step = next((b for b in tried[-1] if b not in seen), None)
        if step is not None:
            path.append(step)
            seen.add(step)
            tried.append(iter(sorted(wired[step], key=lambda c: sum(d not in seen for d in wired[c]))))
        else:
            seen.discard(path.pop())
            tried.pop()
            if not path:
                break
    order, left = [chips[0]], set(chips[1:])
    while left:
        order.append(min(left, key=lambda c: (hops[order[-1], c], c)))
        left.discard(order[-1])
    return order
