"""Products, clusters and their links: how many logical cores a cluster has, what each holds, how they are wired.

One YAML file a product in ``products/``; ``load_cluster("trn2.48xlarge", instances=2, lnc=2)`` gives a
:class:`Cluster`, and :func:`topology_of` its :class:`Topology`. Each number in the YAML carries its source, and
each value that AWS does not publish is a named assumption.
"""

from collectives.topology.cluster import Cluster, ClusterError, load_cluster, product_names
from collectives.topology.environment import cluster_from_environment
from collectives.topology.network import Topology, topology_of

__all__ = [
    "Cluster", "ClusterError", "Topology", "cluster_from_environment", "load_cluster", "product_names", "topology_of",
]  # fmt: skip
