"""Which schedule each reduction of a process group follows: the choice for the ranks' places on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from collectives.topology import Cluster

__all__ = ["planner"]


def planner(
    global_ranks: Sequence[int], algorithm: str | None = None
) -> Callable[[str, int, int], np.ndarray]:
    """Plans for the group of ``global_ranks``, rank r on logical core r of the cluster of ``NEURON_DIST_CLUSTER``,
    of as many instances as the ranks fill.

    ``algorithm`` overrides Neuron's choice, and ``NEURON_DIST_ALGORITHM``, for this group; one that does not suit
    the op or the group raises :class:`collectives.schedule.ScheduleError` when it is first needed.

    The planner takes op, bytes of the whole collective and root (a group rank) and returns the orders of
    additions as :meth:`collectives.planner.Plan.program_table`. It is called for each size class once.
    """
    ranks = tuple(global_ranks)

    @cache
    def cluster() -> Cluster:
        from collectives.topology import cluster_from_environment

        per_instance = cluster_from_environment().cores_per_instance
        return cluster_from_environment(instances=max(ranks) // per_instance + 1)

    def order_of_additions(op: str, nbytes: int, root: int) -> np.ndarray:
        from collectives import plan

        return plan(op, nbytes, ranks, cluster(), root=root, algorithm=algorithm).program_table

    return order_of_additions
