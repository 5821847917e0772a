"""Products and clusters: how many logical cores a cluster has and what each one holds.

One YAML file a product in ``products/``; ``load_cluster("trn2.48xlarge", instances=2, lnc=2)`` gives a
:class:`Cluster`. Each number in the YAML carries its source.
"""

from collectives.topology.cluster import Cluster, ClusterError, load_cluster, product_names

__all__ = ["Cluster", "ClusterError", "load_cluster", "product_names"]
