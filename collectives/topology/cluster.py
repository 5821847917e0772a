"""Load a product's YAML and size a cluster of it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

__all__ = ["Cluster", "ClusterError", "load_cluster", "product_names"]

DEFAULT_PRODUCT = "trn2.48xlarge"

_KEYS: dict[str, type | tuple[type, ...]] = {
    "product": str,
    "family": str,
    "chips": int,
    "physical_cores_per_chip": int,
    "lnc": list,
    "default_lnc": int,
    "hbm_bytes_per_chip": int,
    "max_instances": int,
    "sources": dict,
}


class ClusterError(ValueError):
    """A product or cluster that does not exist or cannot be built; says what was expected."""


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

    def __str__(self) -> str:
        count = f"{self.instances} x " if self.instances > 1 else ""
        return f"{count}{self.product} (LNC {self.lnc})"


def product_names() -> list[str]:
    """Names of the products that ship with the package."""
    files = resources.files("collectives.topology") / "products"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


def load_cluster(product: str = DEFAULT_PRODUCT, instances: int = 1, lnc: int | None = None) -> Cluster:
    """The cluster of ``instances`` instances of ``product``.

    Raises :class:`ClusterError` on an unknown product, a count below 1 or above what the product allows, or
    an LNC that the product does not have.
    """
    spec = _load_product(product)
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
    return Cluster(
        product=spec["product"],
        family=spec["family"],
        instances=instances,
        lnc=lnc,
        chips_per_instance=spec["chips"],
        logical_cores_per_chip=spec["physical_cores_per_chip"] // lnc,
        hbm_bytes_per_chip=spec["hbm_bytes_per_chip"],
    )


def _load_product(product: str) -> dict[str, Any]:
    names = product_names()
    if product not in names:
        near = difflib.get_close_matches(str(product), names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}" if near else ""
        raise ClusterError(f"unknown product {product!r}{hint}. Known: {', '.join(names)}")
    file = resources.files("collectives.topology") / "products" / f"{product}.yaml"
    spec = yaml.safe_load(file.read_text())
    for key, kind in _KEYS.items():
        if not isinstance(spec.get(key), kind):
            raise ClusterError(f"{file}: {key} is {spec.get(key)!r}, expected {kind}")
    unknown = sorted(set(spec) - set(_KEYS))
    if unknown:
        raise ClusterError(f"{file}: unknown key {unknown[0]!r}, expected one of {', '.join(_KEYS)}")
    return spec
