"""Which simulated cluster this process runs on, from the environment. Read at the first use of a device."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectives.topology import Cluster

__all__ = ["count", "current", "describe", "visible_cores"]


def current() -> Cluster:
    """The cluster that the environment describes, see :func:`collectives.topology.cluster_from_environment`."""
    from collectives.topology import cluster_from_environment  # PyYAML: not at import

    return cluster_from_environment()


def visible_cores(cores: int) -> int:
    """How many of ``cores`` logical cores ``NEURON_RT_VISIBLE_CORES`` or ``NEURON_RT_NUM_CORES`` leaves."""
    name = "NEURON_RT_VISIBLE_CORES"
    if value := os.environ.get(name):
        chosen: set[int] = set()
        for part in value.split(","):
            first, _, last = part.strip().partition("-")
            chosen.update(range(_number(name, first), _number(name, last or first) + 1))
        if not chosen or max(chosen) >= cores:
            raise ValueError(f"{name}={value}: expected cores of 0 to {cores - 1}, like 0-3 or 0,2")
        return len(chosen)
    name = "NEURON_RT_NUM_CORES"
    if value := os.environ.get(name):
        count = _number(name, value)
        if not 1 <= count <= cores:
            raise ValueError(f"{name}={value}: expected 1 to {cores}")
        return count
    return cores


def count() -> int:
    """How many devices :func:`describe` would find, 0 where it would raise. The process stays free to fork ranks that
    read an environment of their own: torch's test helpers ask when they are imported."""
    from collectives.topology.environment import LNC_VARIABLES, PRODUCT_VARIABLE

    variables = (PRODUCT_VARIABLE, *LNC_VARIABLES, "NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
    return _count(*map(os.environ.get, variables))


@lru_cache
def _count(*_: str | None) -> int:
    """:func:`count`, once for each environment: ``torch.random.fork_rng`` asks in every call."""
    try:
        return _devices(current())
    except ValueError:
        return 0


def _devices(cluster: Cluster) -> int:
    devices = visible_cores(cluster.cores_per_instance)
    if devices > 127:
        raise ValueError(
            f"{cluster}: {devices} visible cores, but torch numbers at most 127 devices in a process; "
            "set NEURON_RT_NUM_CORES or NEURON_RT_VISIBLE_CORES"
        )
    return devices


def describe() -> tuple[int, int, str, dict[str, float]]:
    """Visible devices, HBM bytes of one, the name that messages use, and the rates of a core's roofline: what the
    native core asks for."""
    from neuron_dist import _C
    from neuron_dist.device import variables
    from neuron_dist.simulation import session
    from neuron_dist.simulation.roofline import Roofline

    cluster = current()
    devices = _devices(cluster)
    variables.report()
    _C._set_blocking(os.environ.get("NEURON_LAUNCH_BLOCKING") == "1")
    session.start()
    return devices, cluster.hbm_bytes_per_core, str(cluster), Roofline.of(cluster).rates()


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a whole number") from None
