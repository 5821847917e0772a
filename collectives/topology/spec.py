"""Read a product's YAML: every key known, every value of the right kind, every assumption named."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

__all__ = ["ClusterError", "load_spec", "product_names"]

# libyaml's loader where PyYAML was built with it: every process that touches the device reads a product.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Kind = type | tuple[type, ...]
NUMBER: tuple[type, ...] = (int, float)

KEYS: dict[str, Kind] = {
    "product": str,
    "family": str,
    "chips": int,
    "physical_cores_per_chip": int,
    "lnc": list,
    "default_lnc": int,
    "hbm_bytes_per_chip": int,
    "max_instances": int,
    "sources": dict,
    "compute": dict,
    "network": dict,
    "assumptions": dict,
    "fitted": dict,
}
NETWORK: dict[str, Kind] = {
    "layout": str,
    "shape": list,
    "link_Bps": list,
    "labels": list,
    "cycles": list,
    "ports": list,
    "efa_Bps": NUMBER,
    "chips_per_efa": int,
}
COMPUTE: dict[str, Kind] = {
    "tensor_flops": dict,
    "chip_flops": NUMBER,
    "hbm_Bps": NUMBER,
}
TENSOR_DTYPES = ("bfloat16", "float16", "float32", "float8")
PARAMETERS: dict[str, Kind] = {
    "neuronlink_counts_both_directions": bool,
    "link_efficiency": NUMBER,
    "core_Bps": NUMBER,
    "efa_efficiency": NUMBER,
    "efa_incast_per_peer": NUMBER,
    "base_ns": NUMBER,
    "hop_ns": NUMBER,
    "extra_hop_ns": NUMBER,
    "switch_ns": NUMBER,
    "efa_hop_ns": NUMBER,
    "mesh_below_bytes": NUMBER,
    "rdh_below_bytes_per_rank": NUMBER,
    "channels_full_node": int,
    "channels_other": int,
    "launch_ns": NUMBER,
    "dispatch_ns": NUMBER,
    "host_Bps": NUMBER,
    "tensor_efficiency": NUMBER,
    "hbm_efficiency": NUMBER,
}
OPTIONAL = {"switch_ns"}
ABOVE_ZERO = ("link_efficiency", "efa_efficiency", "core_Bps", "host_Bps", "tensor_efficiency", "hbm_efficiency")
NOT_NEGATIVE = ("launch_ns", "dispatch_ns")
LAYOUTS = ("single", "torus", "switched")


class ClusterError(ValueError):
    """A product or cluster that does not exist or cannot be built; says what was expected."""


def product_names() -> list[str]:
    """Names of the products that ship with the package."""
    files = resources.files("collectives.topology") / "products"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))


def load_spec(product: str) -> dict[str, Any]:
    """The checked YAML of a product that ships with the package, or of a file (a path that ends in .yaml or .yml).

    ``extends: PRODUCT`` takes every key that is not given from that product; the sections ``network``, ``compute``,
    ``assumptions``, ``fitted`` and ``sources`` are merged key by key. The result also holds ``parameters``
    (each assumption's or fitted parameter's value by name) and ``digest``.

    Raises :class:`ClusterError`, with the key and the nearest known spelling.
    """
    where, spec = _read(product, seen=())
    _check_keys(where, "", spec, KEYS)
    _check_keys(where, "network.", spec["network"], NETWORK)
    _check_keys(where, "compute.", spec["compute"], COMPUTE)
    _check_keys(where, "compute.tensor_flops.", spec["compute"]["tensor_flops"], dict.fromkeys(TENSOR_DTYPES, NUMBER))
    parameters: dict[str, Any] = {}
    for section, wanted in (("assumptions", ("value", "source")), ("fitted", ("value", "fitted_to"))):
        for name, entry in spec[section].items():
            key = f"{section}.{name}"
            if name not in PARAMETERS:
                raise ClusterError(f"{where}: unknown key {key!r}{_near(name, PARAMETERS)}")
            missing = [w for w in wanted if not isinstance(entry, dict) or w not in entry]
            if missing:
                raise ClusterError(f"{where}: {key} lacks {missing[0]!r}: {' and '.join(wanted)} are needed")
            _check_kind(where, f"{key}.value", entry["value"], PARAMETERS[name])
            parameters[name] = entry["value"]
    for name in PARAMETERS:
        if name not in parameters:
            if name not in OPTIONAL:
                raise ClusterError(f"{where}: assumptions.{name} is missing")
            parameters[name] = 0
    spec["parameters"] = parameters
    check_parameters(where, parameters)
    _check_network(where, spec)
    spec["digest"] = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    return spec


def _read(product: str, seen: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    if product in seen:
        raise ClusterError(f"{product}: extends itself by way of {' -> '.join(seen)}")
    if str(product).endswith((".yaml", ".yml")):
        where = str(product)
        try:
            text = Path(product).read_text()
        except OSError as error:
            raise ClusterError(f"{where}: {error.strerror}") from None
    else:
        names = product_names()
        if product not in names:
            known = f"Known: {', '.join(names)}, or the path of a .yaml file"
            raise ClusterError(f"unknown product {product!r}{_near(product, names)}. {known}")
        where = f"{product}.yaml"
        text = (resources.files("collectives.topology") / "products" / where).read_text()
    try:
        spec = deepcopy(_parsed(text))
    except yaml.YAMLError as error:
        raise ClusterError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(spec, dict):
        raise ClusterError(f"{where}: holds {type(spec).__name__}, expected keys such as product, chips, network")
    parent = spec.pop("extends", None)
    if parent is None:
        return where, spec
    merged = _read(parent, (*seen, product))[1]
    for key, value in spec.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            if key in ("assumptions", "fitted"):  # a value moves from one section to the other
                for section in ("assumptions", "fitted"):
                    for name in value:
                        merged.get(section, {}).pop(name, None)
            merged[key] = merged[key] | value
        else:
            merged[key] = value
    return where, merged


@lru_cache
def _parsed(text: str) -> Any:
    """The YAML, which a process parses once; and not at all if it was forked from one that has."""
    return yaml.load(text, _Loader)


def _check_keys(where: str, prefix: str, section: dict[str, Any], known: dict[str, Kind]) -> None:
    for key in section:
        if key not in known:
            hint = _near(key, known) or f"; expected {', '.join(known)}"
            raise ClusterError(f"{where}: unknown key {prefix + str(key)!r}{hint}")
    for key, kind in known.items():
        if key not in section:
            raise ClusterError(f"{where}: {prefix}{key} is missing")
        _check_kind(where, prefix + key, section[key], kind)


def _check_kind(where: str, key: str, value: Any, kind: Kind) -> None:
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(k.__name__ for k in kinds)
        raise ClusterError(f"{where}: {key} is {value!r}, expected {names}")


def _check_network(where: str, spec: dict[str, Any]) -> None:
    network = spec["network"]
    chips, shape = spec["chips"], network["shape"]
    if network["layout"] not in LAYOUTS:
        near = _near(network["layout"], LAYOUTS)
        raise ClusterError(f"{where}: network.layout is {network['layout']!r}, expected {', '.join(LAYOUTS)}{near}")
    size = 1
    for extent in shape:
        _check_kind(where, "network.shape", extent, int)
        size *= extent
    if size != chips:
        raise ClusterError(f"{where}: network.shape {shape} has {size} chips, but chips is {chips}")
    links = {"single": 0, "torus": len(shape), "switched": None}[network["layout"]]
    if links is not None and len(network["link_Bps"]) != links:
        raise ClusterError(f"{where}: network.link_Bps has {len(network['link_Bps'])} values, expected {links}")
    if network["layout"] == "switched" and (len(shape) != 3 or len(network["link_Bps"]) not in (2, 3)):
        raise ClusterError(f"{where}: a switched network has 3 extents in shape and 2 or 3 values in link_Bps")
    for key in ("labels", *(f"cycles[{i}]" for i in range(len(network["cycles"])))):
        value = network["labels"] if key == "labels" else network["cycles"][int(key[7:-1])]
        if value and sorted(value) != list(range(chips)):
            raise ClusterError(f"{where}: network.{key} is not an order of the chips 0 to {chips - 1}")
    if spec["max_instances"] > 1 and (network["efa_Bps"] <= 0 or network["chips_per_efa"] < 1):
        raise ClusterError(f"{where}: network.efa_Bps and chips_per_efa must be above 0 with max_instances above 1")
    rates = {f"compute.{k}": spec["compute"][k] for k in ("chip_flops", "hbm_Bps")}
    rates |= {f"compute.tensor_flops.{k}": v for k, v in spec["compute"]["tensor_flops"].items()}
    for name, value in rates.items():
        _check_above_zero(where, name, value)


def check_parameters(where: str, parameters: Mapping[str, Any]) -> None:
    """Raises :class:`ClusterError` where an assumed or fitted value is of the wrong kind or out of range."""
    for name, value in parameters.items():
        _check_kind(where, name, value, PARAMETERS[name])
        if name in ABOVE_ZERO:
            _check_above_zero(where, name, value)
        elif name in NOT_NEGATIVE and not 0 <= value < math.inf:
            raise ClusterError(f"{where}: {name} is {value}, expected 0 or more")


def _check_above_zero(where: str, name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ClusterError(f"{where}: {name} is {value}, expected a number above 0")


def _near(word: Any, known: Any) -> str:
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
