"""Links and routes of a cluster: which directed links a transfer from core to core takes.

Inside a chip a transfer takes the sending and the receiving core's DMA; between chips of an instance the links
of the dimension-order route (the last axis of the shape first: along the row, then along the column); between
instances the EFA of each end, with a fabric in between that never blocks. A switched network goes up to the
lowest switch that both chips share and down; to the other rack it first takes the direct link of its own place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from collectives.topology.cluster import Cluster

__all__ = ["Topology", "topology_of"]

Array = np.ndarray


@dataclass(eq=False)
class Topology:
    """Directed links, numbered from 0, and the routes over them. Immutable; shared through :func:`topology_of`."""

    cluster: Cluster
    link_Bps: Array
    """Usable bandwidth of each directed link, bytes per second."""
    link_names: list[str]
    routes: Array
    """[chip, chip, hops] inside one instance: link numbers of instance 0, padded with -1."""
    route_ns: Array
    """[chip, chip] latency of a transfer between two chips of an instance, ns."""
    links_per_instance: int
    efa_out: Array
    """[chip] number of the link out to the fabric in instance 0; the link in follows at ``efa_in``."""
    efa_in: Array
    chip_links: dict[tuple[int, int], int] = field(repr=False)
    """(chip, chip) -> number of the direct link, instance 0."""

    @property
    def chips(self) -> int:
        return self.cluster.chips_per_instance

    def neighbours(self, chip: int) -> list[int]:
        """Chips wired to ``chip`` in neuron-ls's order; of a 4 x 4 torus up, left, down, right."""
        if self.cluster.spec["network"]["layout"] != "torus":
            return sorted(b for a, b in self.chip_links if a == chip)
        shape = self.cluster.spec["network"]["shape"]
        place = np.unravel_index(chip, shape)
        found = []
        for axis in (len(shape) - 2, len(shape) - 1, *range(len(shape) - 2)):
            found.append(_moved(place, axis, -1, shape))
        for axis in (len(shape) - 2, len(shape) - 1, *range(len(shape) - 2)):
            found.append(_moved(place, axis, +1, shape))
        return list(dict.fromkeys(f for f in found if f != chip))

    def port_core(self, chip: int, neighbour: int) -> int | None:
        """The chip's core, counted inside the chip, that owns the link to a neighbour in its row or column; None
        where that is not known. Only of Trainium 2 at LNC 2."""
        network = self.cluster.spec["network"]
        if not network["ports"] or self.cluster.lnc != 2:
            return None
        rows, columns = network["shape"][-2:]
        sheet, (row, column) = chip // (rows * columns), divmod(chip % (rows * columns), columns)
        sides = ((row, column - 1), (row + 1, column), (row, column + 1), (row - 1, column))
        around = [sheet * rows * columns + r % rows * columns + c % columns for r, c in sides]
        cores = network["ports"][row % 2][column % 2]
        return cores[around.index(neighbour)] if neighbour in around else None

    def hops(self) -> Array:
        """[chip, chip] number of links between two chips of an instance."""
        return (self.routes >= 0).sum(axis=2)

    def route(self, a: int, b: int) -> list[int]:
        """Links of a transfer from logical core ``a`` to ``b``; empty for a copy on one core."""
        return [int(link) for link in self.route_table(np.array([a]), np.array([b]))[0] if link >= 0]

    def route_table(self, a: Array, b: Array) -> Array:
        """[rows, hops] links of many transfers between logical cores, padded with -1."""
        per_chip = self.cluster.logical_cores_per_chip
        inst_a, chip_a = np.divmod(a // per_chip, self.chips)
        inst_b, chip_b = np.divmod(b // per_chip, self.chips)
        width = max(self.routes.shape[2], 2)
        table = np.full((len(a), width), -1, np.int64)
        same = inst_a == inst_b
        inside = same & (chip_a != chip_b)
        found = self.routes[chip_a[inside], chip_b[inside]]
        offset = (inst_a[inside] * self.links_per_instance)[:, None]
        table[inside, : found.shape[1]] = np.where(found >= 0, found + offset, -1)
        chip = same & (chip_a == chip_b) & (a != b)
        table[chip, 0] = self.core_out(a[chip])
        table[chip, 1] = self.core_out(b[chip]) + 1
        across = ~same
        table[across, 0] = self.efa_out[chip_a[across]] + inst_a[across] * self.links_per_instance
        table[across, 1] = self.efa_in[chip_b[across]] + inst_b[across] * self.links_per_instance
        return table

    def core_out(self, core: Array) -> Array:
        """The link by which a core's DMA writes inside the chip; the one by which it is written is the next."""
        instance, local = np.divmod(core, self.cluster.cores_per_instance)
        return instance * self.links_per_instance + 2 * local

    def latency_table(self, a: Array, b: Array) -> Array:
        """Latency of many transfers between logical cores, ns; 0 on one core."""
        per_chip = self.cluster.logical_cores_per_chip
        inst_a, chip_a = np.divmod(a // per_chip, self.chips)
        inst_b, chip_b = np.divmod(b // per_chip, self.chips)
        inside = self.route_ns[chip_a, chip_b]
        result = np.where(inst_a == inst_b, inside, self.cluster.parameters["efa_hop_ns"])
        return np.where(a == b, 0.0, result)


@lru_cache(maxsize=32)
def topology_of(cluster: Cluster) -> Topology:
    """The topology of a cluster; built once."""
    parameters, network = cluster.parameters, cluster.spec["network"]
    layout, chips = network["layout"], cluster.chips_per_instance
    split = 2 if parameters["neuronlink_counts_both_directions"] else 1
    axis_Bps = [b / split * parameters["link_efficiency"] for b in network["link_Bps"]]
    core_Bps = parameters["core_Bps"] * cluster.lnc

    names: list[str] = []
    bandwidths: list[float] = []

    def add(name: str, Bps: float) -> int:
        names.append(name)
        bandwidths.append(Bps)
        return len(names) - 1

    for core in range(cluster.cores_per_instance):
        add(f"core {core} out", core_Bps)
        add(f"core {core} in", core_Bps)
    chip_links: dict[tuple[int, int], int] = {}
    routes: list[list[list[int]]] = [[[] for _ in range(chips)] for _ in range(chips)]
    latency = np.full((chips, chips), float(parameters["hop_ns"]))
    if layout == "torus":
        _torus(network["shape"], axis_Bps, add, chip_links, routes)
        for a in range(chips):
            for b in range(chips):
                latency[a, b] += max(len(routes[a][b]) - 1, 0) * parameters["extra_hop_ns"]
    elif layout == "switched":
        switches = _switched(network["shape"], axis_Bps, add, chip_links, routes)
        for a in range(chips):
            for b in range(chips):
                direct = sum(link in set(chip_links.values()) for link in routes[a][b][:1]) if a != b else 0
                more = direct and len(routes[a][b]) > 1
                latency[a, b] += switches[a][b] * parameters["switch_ns"] + more * parameters["extra_hop_ns"]
    efa_out, efa_in = np.full(chips, -1, np.int64), np.full(chips, -1, np.int64)
    if cluster.spec["max_instances"] > 1:
        per_efa, Bps = network["chips_per_efa"], network["efa_Bps"] * parameters["efa_efficiency"]
        for first in range(0, chips, per_efa):
            members = slice(first, first + per_efa)
            label = f"chips {first}-{first + per_efa - 1}" if per_efa > 1 else f"chip {first}"
            efa_out[members] = add(f"EFA of {label} out", Bps)
            efa_in[members] = add(f"EFA of {label} in", Bps)
    width = max((len(r) for row in routes for r in row), default=0)
    table = np.full((chips, chips, max(width, 1)), -1, np.int64)
    for a in range(chips):
        for b in range(chips):
            table[a, b, : len(routes[a][b])] = routes[a][b]
    one = cluster.instances == 1
    return Topology(
        cluster=cluster,
        link_Bps=np.tile(np.array(bandwidths), cluster.instances),
        link_names=[n if one else f"instance {i} {n}" for i in range(cluster.instances) for n in names],
        routes=table,
        route_ns=latency,
        links_per_instance=len(names),
        efa_out=efa_out,
        efa_in=efa_in,
        chip_links=chip_links,
    )


def _moved(place, axis: int, step: int, shape) -> int:
    moved = [int(p) for p in place]
    moved[axis] = (moved[axis] + step) % shape[axis]
    return int(np.ravel_multi_index(moved, shape))


def _torus(shape, axis_Bps, add, chip_links, routes) -> None:
    """Links of a torus and its routes. Half-way round, an even place goes up and an odd one down: balanced."""
    chips = len(routes)
    for chip in range(chips):
        place = np.unravel_index(chip, shape)
        for axis in range(len(shape)):
            for step in (-1, 1):
                other = _moved(place, axis, step, shape)
                if other != chip and (chip, other) not in chip_links:
                    chip_links[chip, other] = add(f"chip {chip} -> chip {other}", axis_Bps[axis])
    for a in range(chips):
        start = [int(p) for p in np.unravel_index(a, shape)]
        for b in range(chips):
            goal = np.unravel_index(b, shape)
            at, now = list(start), a
            for axis in reversed(range(len(shape))):
                extent = shape[axis]
                ahead = (int(goal[axis]) - at[axis]) % extent
                forward = 2 * ahead < extent or (2 * ahead == extent and at[axis] % 2 == 0)
                for _ in range(ahead if forward else extent - ahead if ahead else 0):
                    after = _moved(at, axis, 1 if forward else -1, shape)
                    routes[a][b].append(chip_links[now, after])
                    at[axis] = (at[axis] + (1 if forward else -1)) % extent
                    now = after


def _switched(shape, level_Bps, add, chip_links, routes) -> list[list[int]]:
    """Links of racks x servers x chips behind switches; returns the switches on each route."""
    racks, servers, per_server = shape
    chips = len(routes)
    rack_up = [add(f"chip {c} -> rack switch", level_Bps[1]) for c in range(chips)]
    rack_down = [add(f"rack switch -> chip {c}", level_Bps[1]) for c in range(chips)]
    server_up, server_down = rack_up, rack_down
    if len(level_Bps) > 2:
        server_up = [add(f"chip {c} -> server switch", level_Bps[2]) for c in range(chips)]
        server_down = [add(f"server switch -> chip {c}", level_Bps[2]) for c in range(chips)]
    per_rack = servers * per_server
    for chip in range(chips):
        for rack in range(racks):
            other = rack * per_rack + chip % per_rack
            if other != chip:
                chip_links[chip, other] = add(f"chip {chip} -> chip {other}", level_Bps[0])
    switches = [[0] * chips for _ in range(chips)]
    for a in range(chips):
        for b in range(chips):
            at = a
            if a // per_rack != b // per_rack:
                at = b // per_rack * per_rack + a % per_rack
                routes[a][b].append(chip_links[a, at])
            if at != b:
                same_server = at // per_server == b // per_server
                up, down = (server_up, server_down) if same_server else (rack_up, rack_down)
                routes[a][b] += [up[at], down[b]]
                switches[a][b] = 1
    return switches
