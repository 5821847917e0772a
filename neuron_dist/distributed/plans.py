"""Which schedule each collective of a process group follows, and what it costs: the choice for the ranks' places on
the cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from collectives.topology import Cluster

__all__ = ["Plans", "cluster_of"]

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
"""The ops that a group's own ``algorithm`` is for."""


def cluster_of(most_rank: int) -> Cluster:
    """The cluster of the environment with as many instances as ranks up to ``most_rank`` fill."""
    from collectives.topology import cluster_from_environment

    one = cluster_from_environment()
    instances = most_rank // one.cores_per_instance + 1
    return one if instances == 1 else cluster_from_environment(instances=instances)


class Plans:
    """Plans for the group of ``global_ranks``, rank r on logical core r of the cluster of ``NEURON_DIST_CLUSTER``.

    ``algorithm`` overrides Neuron's choice, and ``NEURON_DIST_ALGORITHM``, for this group; one that does not suit
    the op or the group raises :class:`collectives.schedule.ScheduleError` when it is first needed.
    """

    def __init__(
        self, global_ranks: Sequence[int], rank: int, algorithm: str | None = None
    ) -> None:
        """``rank`` is this process's place in the group."""
        self.ranks, self.rank, self.algorithm = tuple(global_ranks), rank, algorithm

    @cached_property
    def cluster(self) -> Cluster:
        return cluster_of(max(self.ranks))

    def order_of_additions(self, op: str, nbytes: int, root: int) -> np.ndarray:
        """As :meth:`collectives.planner.Plan.program_table`, for a reduction of ``nbytes`` bytes as a whole; called
        for each size class once. ``root`` is a group rank."""
        from collectives import plan

        found = plan(op, nbytes, self.ranks, self.cluster, root=root, algorithm=self.algorithm)
        return found.program_table

    def price(self, op: str, planned: int, nbytes: int, root: int) -> tuple[int, str]:
        """Simulated nanoseconds of ``nbytes`` bytes by the schedule that is chosen for ``planned`` bytes, and its
        algorithm. For ``send``, ``root`` is the receiver."""
        from collectives import plan

        ranks, algorithm = self.ranks, self.algorithm if op in REDUCTIONS else None
        if op == "send":
            ranks, root = (self.ranks[self.rank], self.ranks[root]), 0
        found = plan(op, planned, ranks, self.cluster, root=root, algorithm=algorithm)
        return math.floor(found.ready.pricer.price(nbytes).time_ns + 0.5), found.algorithm
