"""Which cluster the environment describes: what processes and tools use where they are given none."""

from __future__ import annotations

import os

from collectives.topology.cluster import DEFAULT_PRODUCT, Cluster, load_cluster
from collectives.topology.spec import ClusterError

__all__ = ["LNC_VARIABLES", "PRODUCT_VARIABLE", "cluster_from_environment"]

PRODUCT_VARIABLE = "NEURON_DIST_CLUSTER"
LNC_VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")


def cluster_from_environment(
    product: str | None = None, instances: int = 1, lnc: int | None = None, mapping: list[int] | None = None
) -> Cluster:
    """The cluster of ``NEURON_DIST_CLUSTER`` (a product's name or a YAML file; trn2.48xlarge unless set).

    ``NEURON_LOGICAL_NC_CONFIG``, or its newer spelling ``NEURON_RT_VIRTUAL_CORE_SIZE``, is the number of physical
    cores in a logical one. Arguments that are given come first. Raises :class:`ClusterError`.
    """
    product = product or os.environ.get(PRODUCT_VARIABLE) or DEFAULT_PRODUCT
    if lnc is None:
        name = next((name for name in LNC_VARIABLES if os.environ.get(name)), None)
        if name is not None:
            try:
                lnc = int(os.environ[name])
            except ValueError:
                raise ClusterError(f"{name}: {os.environ[name]!r} is not a whole number") from None
    return load_cluster(product, instances=instances, lnc=lnc, mapping=mapping)
