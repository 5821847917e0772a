"""Load a product's YAML and size a cluster of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectives.topology.spec import (
    PARAMETERS,
    ClusterError,
    _near,
    check_parameters,
    load_spec,
    product_names,
)

__all__ = ["Cluster", "ClusterError", "load_cluster", "product_names"]

DEFAULT_PRODUCT = "trn2.48xlarge"


@dataclass(frozen=True)
class Cluster:
    """Some instances of one product at one logical NeuronCore configuration."""

    product: str
    family: str
    instances: int
    lnc: int
    """Physical cores fused into one logical core."""
    chips_per_instance: int
    logical_cores_per_chip: int
    hbm_bytes_per_chip: int
    mapping: tuple[int, ...] | None = None
    """Logical core of each global rank; None is Neuron's order, in which rank r is core r."""
    digest: str = ""
    """Of the YAML and its overrides: clusters of one digest price alike."""
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The checked YAML, see :func:`collectives.topology.spec.load_spec`."""

    @property
    def cores_per_instance(self) -> int:
        """Logical cores, that is devices, of one instance."""
        return self.chips_per_instance * self.logical_cores_per_chip

    @property
    def cores(self) -> int:
        """Logical cores of the whole cluster: the most ranks it can hold."""
        return self.cores_per_instance * self.instances

    @property
    def hbm_bytes_per_core(self) -> int:
        """HBM that one logical core may fill, in bytes.

        Its share of the chip; at LNC 1 on Trainium 2 and 3 two cores compete for one stack and each may fill
        its half only.
        """
        return self.hbm_bytes_per_chip // self.logical_cores_per_chip

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Assumed and fitted values by name."""
        return self.spec["parameters"]

    def core_of(self, rank: int) -> int:
        """The logical core on which a global rank runs; raises :class:`ClusterError` where there is none."""
        limit = self.cores if self.mapping is None else len(self.mapping)
        if not 0 <= rank < limit:
            raise ClusterError(f"{self}: there is no core for rank {rank}, only for 0 to {limit - 1}")
        return rank if self.mapping is None else self.mapping[rank]

    def __str__(self) -> str:
        count = f"{self.instances} x " if self.instances > 1 else ""
        return f"{count}{self.product} (LNC {self.lnc})"


def load_cluster(
    product: str = DEFAULT_PRODUCT,
    instances: int = 1,
    lnc: int | None = None,
    *,
    mapping: Sequence[int] | None = None,
    assumptions: Mapping[str, Any] | None = None,
) -> Cluster:
    """The cluster of ``instances`` instances of ``product``: a shipped one, or the path of a YAML file.

    ``mapping`` gives the logical core of each rank. ``assumptions`` replaces assumed or fitted values by name.

    Raises :class:`ClusterError` on an unknown product, a count below 1 or above what the product allows, an LNC
    that the product does not have, a mapping that is not one, an unknown assumption, or a wrong YAML.
    """
    spec = load_spec(product)
    if lnc is None:
        lnc = spec["default_lnc"]
    if lnc not in spec["lnc"]:
        allowed = " or ".join(str(v) for v in spec["lnc"])
        raise ClusterError(f"{product}: lnc is {lnc!r}, expected {allowed}")
    if not isinstance(instances, int) or isinstance(instances, bool) or instances < 1:
        raise ClusterError(f"{product}: instances is {instances!r}, expected a whole number from 1 up")
    if instances > spec["max_instances"]:
        raise ClusterError(
            f"{product}: instances is {instances}, expected at most {spec['max_instances']} for this product"
        )
    digest = spec["digest"]
    for name, value in (assumptions or {}).items():
        if name not in PARAMETERS:
            raise ClusterError(f"{product}: unknown assumption {name!r}{_near(name, PARAMETERS)}")
        spec["parameters"][name] = value
        digest += f",{name}={value}"
    check_parameters(product, assumptions or {})
    cluster = Cluster(
        product=spec["product"],
        family=spec["family"],
        instances=instances,
        lnc=lnc,
        chips_per_instance=spec["chips"],
        logical_cores_per_chip=spec["physical_cores_per_chip"] // lnc,
        hbm_bytes_per_chip=spec["hbm_bytes_per_chip"],
        mapping=None if mapping is None else tuple(mapping),
        digest=digest,
        spec=spec,
    )
    if cluster.mapping is not None:
        wrong = [c for c in cluster.mapping if not isinstance(c, int) or not 0 <= c < cluster.cores]
        if wrong:
            raise ClusterError(f"{cluster}: mapping names core {wrong[0]!r}, expected 0 to {cluster.cores - 1}")
        if len(set(cluster.mapping)) != len(cluster.mapping):
            twice = next(c for c in cluster.mapping if cluster.mapping.count(c) > 1)
            raise ClusterError(f"{cluster}: mapping gives core {twice} to two ranks")
    return cluster
