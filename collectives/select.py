"""Which algorithm: Neuron's rules by op, size, the group's shape and the product.

Inside an instance (everything that NeuronLink joins): Mesh for small, RDH for middle and KangaRing for large
messages; Ring where a chip is not evenly or only singly filled, or not wholly for KangaRing. Over instances:
hierarchical, with the cheapest of Mesh, RDH and Ring between them by price; flat where they are not alike.
Ops that Neuron has no primitive for (broadcast, reduce, gather, scatter, barrier) follow the same sizes.

``NEURON_DIST_ALGORITHM`` overrides: a name for all ops that have it (``ring``), or ``op=name`` pairs with commas
between them (``all_reduce=rdh,all_gather=ring``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from collectives.algorithms import algorithms_for, lookup
from collectives.cost import Pricer
from collectives.group import Group
from collectives.schedule import OPS, ScheduleError

__all__ = ["ENVIRONMENT", "Choice", "choose"]

ENVIRONMENT = "NEURON_DIST_ALGORITHM"


@dataclass(frozen=True)
class Choice:
    """An algorithm's name, why it was taken, and why each other was not."""

    name: str
    reason: str
    rejected: tuple[tuple[str, str], ...]


def choose(op: str, nbytes: int, group: Group, algorithm: str | None = None) -> Choice:
    """The algorithm for ``op`` on ``nbytes`` bytes (counted as in :meth:`Pricer.price`).

    ``algorithm`` or the environment asks for one by name. Raises :class:`ScheduleError` for an unknown op or
    algorithm, and where the one that the argument names refuses the group. One that the environment names and
    that does not suit is left out, and reported among the rejected.
    """
    if op not in OPS:
        raise ScheduleError(f"unknown op {op!r}, expected one of {', '.join(OPS)}")
    asked, refused = "", ""
    if algorithm is not None:
        why = lookup(algorithm, op).refuses(op, group)
        if why:
            raise ScheduleError(f"{algorithm} {op} on {group.size} ranks: {why}")
        asked = "asked for by the caller"
    else:
        algorithm, refused = _from_environment(op, group)
        asked = f"asked for by {ENVIRONMENT}" if algorithm else ""
    name, reason = (algorithm, asked) if algorithm else _by_rule(op, nbytes, group)
    rejected = []
    for other in algorithms_for(op):
        if other.name != name:
            why = other.refuses(op, group) or f"{name}: {reason}"
            rejected.append((other.name, why))
    if refused:
        rejected.insert(0, (os.environ[ENVIRONMENT], refused))
    return Choice(name, reason, tuple(rejected))


def _from_environment(op: str, group: Group) -> tuple[str | None, str]:
    """(name, why the one asked for was left out)."""
    value = os.environ.get(ENVIRONMENT, "").strip()
    wanted = None
    for entry in filter(None, (v.strip() for v in value.split(","))):
        where, _, name = entry.rpartition("=")
        if where and where not in OPS:
            raise ScheduleError(f"{ENVIRONMENT}={value}: unknown op {where!r}, expected one of {', '.join(OPS)}")
        if where in ("", op):
            wanted = name
    if wanted is None:
        return None, ""
    try:
        algorithm = lookup(wanted, op)
    except ScheduleError as error:
        if str(error).startswith("unknown"):
            raise ScheduleError(f"{ENVIRONMENT}: {error}") from None
        return None, str(error)
    why = algorithm.refuses(op, group)
    return (None, why) if why else (wanted, "")


def _by_rule(op: str, nbytes: int, group: Group) -> tuple[str, str]:
    small = nbytes < group.cluster.parameters["mesh_below_bytes"]
    if op in ("send", "permute"):
        return "p2p", "one message a pair"
    if op in ("gather", "scatter"):
        return ("tree", "small: fewest steps at the root") if small else ("direct", "large: each byte moves once")
    if op == "all_to_all":
        if lookup("hier:mesh+mesh", op).refuses(op, group):
            return "mesh", "everyone to everyone"
        return "hier:mesh+mesh", "over instances only ranks of one index exchange"
    if op in ("broadcast", "reduce") and small:
        return "tree", "small: log2 n steps"
    if len(group.instances) == 1:
        return _inside(group, nbytes)
    if not group.symmetric:
        return ("mesh" if small else "ring"), "the instances do not hold the same cores"
    if len(group.instances[0]) == 1:
        return _cheapest(op, nbytes, group, ("mesh", "rdh", "ring", "mesh_single_step"), "one rank an instance")
    inner, reason = _inside(group.subgroup(group.instances[0]), nbytes)
    between = group.subgroup([members[0] for members in group.instances])
    share = group.cluster.logical_cores_per_chip * group.cluster.spec["network"]["chips_per_efa"]
    share = min(share, len(group.instances[0]))  # ranks that use one EFA at a time
    part = nbytes * share // len(group.instances[0])
    outer, _ = _cheapest(op, part, between, ("mesh", "rdh", "ring"), "")
    return f"hier:{inner}+{outer}", f"inside: {reason}; between: cheapest of mesh, rdh, ring"


def _inside(group: Group, nbytes: int) -> tuple[str, str]:
    """Neuron's rule inside an instance."""
    parameters = group.cluster.parameters
    mesh, rdh = parameters["mesh_below_bytes"], parameters["rdh_below_bytes_per_rank"] * group.size
    if not group.ranks_per_chip:
        return "ring", "chips hold different numbers of ranks"
    if group.ranks_per_chip == 1 and len(group.members) > 1:
        return "ring", "one rank a chip"
    if nbytes < mesh:
        return "mesh", f"small: below {mesh} bytes"
    if group.cluster.spec["network"]["layout"] == "switched":
        return "ring", f"large on a switched network: {mesh} bytes or more"
    if nbytes < rdh and not lookup("rdh", "all_reduce").refuses("all_reduce", group):
        return "rdh", f"middle: {mesh} to {rdh} bytes on {group.size} ranks"
    why = lookup("kangaring", "all_reduce").refuses("all_reduce", group)
    if not why:
        return "kangaring", "large" if nbytes >= rdh else "middle, and the chips are not a power of two"
    return "ring", why


def _cheapest(op: str, nbytes: int, group: Group, among: tuple[str, ...], reason: str) -> tuple[str, str]:
    prices = {}
    for name in among:
        try:
            algorithm = lookup(name, op)
        except ScheduleError:
            continue
        if not algorithm.refuses(op, group):
            prices[name] = Pricer(algorithm.build(op, group), group).price(nbytes).time_ns
    return min(prices, key=lambda name: prices[name]), f"{reason}, cheapest of {', '.join(prices)}"
