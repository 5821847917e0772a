"""What a collective puts on the cluster's links, for the ranks that really run it.

Plans are shared by all groups of one shape, moved to begin in the first instance
(:attr:`collectives.group.Group.shape`), so a plan's own links are those of another group. Here they are moved back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectives.group import Group
from collectives.planner import plan
from collectives.topology import Cluster, topology_of

__all__ = ["bytes_by_link", "first_link"]


def bytes_by_link(
    op: str,
    nbytes: int,
    ranks: Sequence[int],
    cluster: Cluster,
    *,
    root: int = 0,
    algorithm: str | None = None,
) -> np.ndarray:
    """[links of the topology] bytes that ``op`` of ``nbytes`` bytes on the global ``ranks`` moves over each
    directed link; arguments and errors as of :func:`collectives.plan`.

    Linear in ``nbytes`` but for chunks rounded down to whole bytes, so one call with the bytes of many collectives
    of one algorithm gives their sum.
    """
    moved = plan(op, nbytes, ranks, cluster, root=root, algorithm=algorithm)
    return np.roll(moved.price.bytes_by_link, first_link(ranks, cluster))


def first_link(ranks: Sequence[int], cluster: Cluster) -> int:
    """What to add to the numbers of a plan's links for those that ``ranks`` use: instances are alike, and their links
    numbered one instance after the other."""
    first = int(Group(cluster, ranks).cores.min()) // cluster.cores_per_instance
    return first * topology_of(cluster).links_per_instance
