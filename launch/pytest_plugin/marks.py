"""The mark's options: from all marks of a test, checked when it is collected."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from launch.pytest_plugin import MARK

__all__ = ["Options", "options_of"]

PARAMETERS = {"world_size": "ranks", "backend": "backend", "device": "device", "cluster": "cluster"}
"""Option that a parametrised argument of a test stands for."""


@dataclass(frozen=True)
class Options:
    """How a test runs in ranks."""

    ranks: int
    cluster: str | None = None
    """As ``NEURON_DIST_CLUSTER``: a product's name, or a YAML file."""
    backend: str | None = "neuron"
    """As for ``init_process_group``; None leaves that to the test."""
    device: str = ""
    """Of the fixtures ``device`` and ``mesh``."""
    mesh: tuple[int, ...] | None = None
    mesh_dim_names: tuple[str, ...] | None = None
    timeout: float | None = None
    """Seconds; None leaves it to pytest-timeout, or else to the default."""
    env: Mapping[str, str] | None = None


def options_of(item: pytest.Function) -> Options:
    """The options of ``item``, of several marks the closest one's. Raises ``CollectError`` that says what is wrong."""
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARK))):
        if mark.args:
            raise _wrong(item, f"options are named, as in {MARK}(ranks={mark.args[0]!r})")
        given |= mark.kwargs
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for argument, option in PARAMETERS.items():
        if argument in parameters and argument in item.fixturenames:
            value = parameters[argument]
            given[option] = str(value) if option == "device" else value
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise _wrong(item, f"there is no option {name!r}{_near(name, known)}")
    problem = _problem(given)
    if problem:
        raise _wrong(item, problem)
    given["device"] = given.get("device") or _device_of(given.get("backend", "neuron"))
    for name in ("mesh", "mesh_dim_names"):
        if given.get(name) is not None:
            given[name] = tuple(given[name])
    return Options(**given)


def _device_of(backend: str | None) -> str:
    """``neuron`` for backends ``neuron`` and ``cpu:gloo,neuron:neuron``, ``cpu`` for ``gloo`` and ``cpu:neuron``."""
    serves = {part.partition(":")[0] for part in (backend or "").split(",")}
    return "neuron" if "neuron" in serves else "cpu"


def _problem(given: dict[str, Any]) -> str | None:
    """What is wrong with the values, or None."""
    ranks = given.get("ranks")
    if ranks is None:
        return f"the number of ranks is missing: {MARK}(ranks=4), or parametrise the argument world_size"
    if not _whole(ranks) or ranks < 1:
        return f"ranks is {ranks!r}, expected a whole number from 1 up"
    timeout = given.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        return f"timeout is {timeout!r}, expected seconds"
    env = given.get("env")
    if env is not None and not (
        isinstance(env, Mapping) and all(isinstance(s, str) for pair in env.items() for s in pair)
    ):
        return f"env is {env!r}, expected a dict of strings"
    return _mesh_problem(given, ranks) or _name_problem(given)


def _mesh_problem(given: dict[str, Any], ranks: int) -> str | None:
    mesh, names = given.get("mesh"), given.get("mesh_dim_names")
    if mesh is not None:
        if not isinstance(mesh, tuple | list) or not mesh or not all(_whole(n) and n > 0 for n in mesh):
            return f"mesh is {mesh!r}, expected the sizes of its axes, as in (2, 2)"
        if math.prod(mesh) != ranks:
            return f"mesh {tuple(mesh)} has {math.prod(mesh)} places for {ranks} ranks"
    if names is not None:
        axes = len(mesh or (ranks,))
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            return f"mesh_dim_names is {names!r}, expected one name for each axis, as in ('dp', 'tp')"
        if len(names) != axes:
            return f"mesh_dim_names {tuple(names)} names {len(names)} axes of a mesh of {axes}"
    return None


def _name_problem(given: dict[str, Any]) -> str | None:
    """Names that torch or the cluster's data do not know. A test module that needs torch has imported it by now."""
    if given.get("cluster") is not None:
        from collectives.topology import ClusterError, load_cluster

        try:
            load_cluster(given["cluster"])
        except (ClusterError, TypeError) as error:
            return f"cluster: {error}"
    torch = sys.modules.get("torch")
    backend, device = given.get("backend"), given.get("device")
    if backend is not None and not isinstance(backend, str):
        return f"backend is {backend!r}, expected a name as for init_process_group, or None"
    if torch and backend:
        known = torch.distributed.Backend.backend_list
        for name in (part.rpartition(":")[2].lower() for part in backend.split(",")):
            if name not in known or name == "undefined":
                return f"there is no backend {name!r}{_near(name, known)}"
    if device is not None and not isinstance(device, str):
        return f"device is {device!r}, expected a name, as in 'neuron' or 'cpu'"
    if torch and device:
        try:
            torch.device(device)
        except RuntimeError:
            return f"there is no device {device!r}{_near(device, ['neuron', 'cpu', 'meta'])}"
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _near(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _wrong(item: pytest.Function, problem: str) -> Exception:
    return pytest.Collector.CollectError(f"{item.nodeid}: mark {MARK}: {problem}")
