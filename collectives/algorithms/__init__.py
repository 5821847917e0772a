"""The algorithms by name, and how a user adds one.

    def reduce_scatter(group):                      # one step: everyone sends each rank its segment
        src, dst = ...                              # arrays over all pairs of group ranks
        return Half(Rows.of(0, src, dst, dst, reduce=True), steps=1, pieces=1)

    register(Halves("mine", reduce_scatter, all_gather))
    NEURON_DIST_ALGORITHM=mine                      # or plan(..., algorithm="mine")

An algorithm is either :class:`Halves` (a reduce-scatter and an all-gather make five ops) or :class:`Single`.
Whatever it builds is proved before it is used.
"""

from __future__ import annotations

import difflib

from collectives.algorithms.all_to_all import DIRECT_ALL_TO_ALL, STAGED_ALL_TO_ALL
from collectives.algorithms.base import Algorithm, Half, Halves, Single
from collectives.algorithms.hierarchical import hierarchical
from collectives.algorithms.kangaring import KANGARING
from collectives.algorithms.mesh import MESH, MESH_SINGLE_STEP
from collectives.algorithms.point_to_point import POINT_TO_POINT
from collectives.algorithms.rdh import RDH
from collectives.algorithms.ring import RING
from collectives.algorithms.rooted import DIRECT, TREE
from collectives.schedule import ScheduleError

__all__ = [
    "Algorithm", "Half", "Halves", "Single", "algorithms_for", "changes", "hierarchical", "lookup", "names", "register", "unregister",
]  # fmt: skip

_ALGORITHMS: list[Algorithm] = [RING, KANGARING, MESH, RDH, MESH_SINGLE_STEP, TREE, DIRECT, POINT_TO_POINT]
_ALGORITHMS += [DIRECT_ALL_TO_ALL, STAGED_ALL_TO_ALL]
_ALGORITHMS += [hierarchical(a, b) for a in (MESH, RDH, KANGARING, RING) for b in (MESH, RDH, RING)]
_changes = [0]


def register(algorithm: Algorithm) -> None:
    """Add an algorithm of your own. Raises ValueError if the name is taken for one of its ops."""
    for known in _ALGORITHMS:
        if known.name == algorithm.name and known.ops & algorithm.ops:
            raise ValueError(f"there is an algorithm {algorithm.name!r} for {sorted(known.ops & algorithm.ops)[0]}")
    _ALGORITHMS.append(algorithm)
    _changes[0] += 1


def unregister(name: str) -> None:
    """Remove an algorithm that was registered."""
    _ALGORITHMS[:] = [a for a in _ALGORITHMS if a.name != name]
    _changes[0] += 1


def changes() -> int:
    """How often the registry has changed: plans of one count may be kept."""
    return _changes[0]


def names(op: str | None = None) -> list[str]:
    """Names of the algorithms (that have ``op``)."""
    return list(dict.fromkeys(a.name for a in _ALGORITHMS if op is None or op in a.ops))


def algorithms_for(op: str) -> list[Algorithm]:
    """The algorithms that have ``op``."""
    return [a for a in _ALGORITHMS if op in a.ops]


def lookup(name: str, op: str) -> Algorithm:
    """The algorithm of this name for this op; raises :class:`ScheduleError` with the nearest spelling."""
    for algorithm in _ALGORITHMS:
        if algorithm.name == name and op in algorithm.ops:
            return algorithm
    if name in names():
        raise ScheduleError(f"algorithm {name!r} has no {op}; these have: {', '.join(names(op))}")
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ScheduleError(f"unknown algorithm {name!r}{hint} Known: {', '.join(names())}")
