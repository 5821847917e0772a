"""The cluster's links as SVG, coloured by how busy they were; the hot one is ringed.

The half of a link that is next to a chip is what this chip sends. A torus is drawn as it is wired, with stubs for
links that go round and for the third axis of an UltraServer; a switched network, whose chips all hang on switches, is
drawn as cells, one a chip; a single chip by its cores.
"""

from __future__ import annotations

import re
from html import escape

import numpy as np

from neuron_dist.simulation import units
from neuron_dist.simulation.links import LinkUse

__all__ = ["LEVELS", "Picture", "level_shares", "pictures"]

LEVELS = 5
"""Colours of links in use, in equal parts of the hot link's time."""
DRAWN = 4
"""Instances that are drawn: those with the busiest links."""
GAP, MARGIN, CHIP = 78, 46, 17


class Picture:
    """An SVG in the making: one instance of the cluster."""

    def __init__(self, use: LinkUse, instance: int) -> None:
        self.use, self.instance = use, instance
        self.topology, self.cluster = use.topology, use.topology.cluster
        self.shift = instance * self.topology.links_per_instance
        self.busy, self.shares, self.hot = use.busy_ns, use.shares, use.hot
        self.most = float(self.busy.max(initial=0))
        names = self.topology.link_names[: self.topology.links_per_instance]
        self.numbers = {re.sub(r"^instance \d+ ", "", name): i for i, name in enumerate(names)}
        self.parts: list[str] = []
        self.above: list[str] = []

    def level(self, *links: int) -> int:
        """Colour of the busiest of some links of the first instance: 0 unused, to :data:`LEVELS`."""
        busiest = max(self.busy[link + self.shift] for link in links)
        return int(np.ceil(busiest / self.most * LEVELS - 1e-9)) if busiest else 0

    def is_hot(self, *links: int) -> bool:
        return self.hot is not None and self.hot - self.shift in links

    def words(self, *links: int) -> str:
        """A tooltip."""
        said = []
        for link in links:
            at = link + self.shift
            use = f"{units.volume(self.use.nbytes[at])}, busy {units.share(self.shares[at])} of the time"
            said.append(f"{self.use.name(at)}: {use if self.use.nbytes[at] else 'unused'}")
        return f"<title>{escape(chr(10).join(said))}</title>"

    def line(self, x: float, y: float, to_x: float, to_y: float, link: int) -> None:
        where = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        drawn = f'<line {where} class="k{self.level(link)}">{self.words(link)}</line>'
        if self.is_hot(link):  # above all others
            self.above += [f'<line {where} class="ring"/>', f'<line {where} class="gap"/>', drawn]
        else:
            self.parts.append(drawn)

    def box(self, x: float, y: float, width: float, height: float, *links: int) -> None:
        where = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        hot = " hot" if self.is_hot(*links) else ""
        drawn = f'<rect {where} class="f{self.level(*links)}{hot}">{self.words(*links)}</rect>'
        (self.above if hot else self.parts).append(drawn)

    def text(self, x: float, y: float, words: str, css: str = "mid") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{escape(words)}</text>')

    def core_links(self, chip: int) -> list[int]:
        cores = np.arange(self.cluster.logical_cores_per_chip)
        first = self.topology.core_out(cores + chip * len(cores))
        return [int(link) for out in first for link in (out, out + 1)]

    def efa_links(self, chip: int) -> list[int]:
        """Out and in; none where the cluster is one instance, whose EFAs carry nothing."""
        if self.cluster.instances == 1:
            return []
        return [int(self.topology.efa_out[chip]), int(self.topology.efa_in[chip])]

    def done(self, width: float, height: float, name: str) -> str:
        hot = f"; the hot link is {self.use.name(self.hot)}" if self.hot is not None else ""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" class="links" role="img" '
        head += f'style="width:{width:.0f}px"><title>{escape(f"Links of {name}, by simulated use{hot}")}</title>'
        return "".join([head, *self.parts, *self.above, "</svg>"])


def pictures(use: LinkUse) -> tuple[list[tuple[str, str]], str]:
    """((caption, SVG) of each instance that is drawn, a word on those that are not)."""
    cluster, per_instance = use.topology.cluster, use.topology.links_per_instance
    heat = use.busy_ns.reshape(cluster.instances, per_instance).max(axis=1)
    chosen = sorted(np.argsort(-heat, kind="stable")[:DRAWN].tolist())
    layout = cluster.spec["network"]["layout"]
    draw = {"torus": _torus, "switched": _switched, "single": _single}[layout]
    found = []
    for instance in chosen:
        name = f"instance {instance}" if cluster.instances > 1 else str(cluster)
        found.append((name, draw(Picture(use, instance), name)))
    left = cluster.instances - len(chosen)
    words = ""
    if left:
        rest = float(np.delete(heat, chosen).max())
        share = units.share(rest / use.within_ns if use.within_ns else 0.0)
        words = (
            f"{left} more instances are not drawn; their busiest link is busy {share} of the time."
        )
    return found, words


def level_shares(use: LinkUse) -> list[str]:
    """Up to which share of the time a link is busy in each colour."""
    most = float(use.shares.max(initial=0))
    return [units.share(most * i / LEVELS) for i in range(1, LEVELS + 1)]


def _torus(picture: Picture, name: str) -> str:
    shape = picture.cluster.spec["network"]["shape"]
    rows, columns = shape[-2:]
    sheets = int(np.prod(shape[:-2], dtype=int))
    wide, high = (columns - 1) * GAP + 2 * MARGIN, (rows - 1) * GAP + 2 * MARGIN
    across = 2 if sheets > 1 else 1
    label = 18 if sheets > 1 else 0
    places = {}
    for chip in range(picture.topology.chips):
        sheet, (row, column) = chip // (rows * columns), divmod(chip % (rows * columns), columns)
        x = sheet % across * wide + MARGIN + column * GAP
        y = sheet // across * (high + label) + label + MARGIN + row * GAP
        places[chip] = (sheet, x, y)
        if sheets > 1 and not row and not column:
            picture.text(x - MARGIN + 4, y - MARGIN - 4, f"server {sheet}", "")
    for (a, b), link in picture.topology.chip_links.items():
        (sheet, x, y), (other, to_x, to_y) = places[a], places[b]
        if sheet != other:  # to the same place in the next or the last server of the ring
            side = 1 if (other - sheet) % sheets == 1 else -1
            picture.line(x + side * 11, y + side * 11, x + side * 27, y + side * 27, link)
        elif abs(x - to_x) + abs(y - to_y) <= GAP:
            picture.line(x, y, (x + to_x) / 2, (y + to_y) / 2, link)
        else:  # goes round
            dx, dy = np.sign(x - to_x) * (MARGIN - 4), np.sign(y - to_y) * (MARGIN - 4)
            picture.line(x, y, x + dx, y + dy, link)
    picture.parts += picture.above
    picture.above = []
    for chip, (_, x, y) in places.items():
        inside = picture.core_links(chip)
        hot = " hot" if picture.is_hot(*inside) else ""
        picture.parts.append(
            f'<circle cx="{x}" cy="{y}" r="{CHIP}" class="chip k{picture.level(*inside)}{hot}">'
            f"{picture.words(*inside)}</circle>"
        )
        picture.text(x, y + 5, str(chip))
        if efa := picture.efa_links(chip):
            picture.box(x + 10, y - 25, 12, 12, *efa)
    return picture.done(across * wide, -(-sheets // across) * (high + label), name)


def _switched(picture: Picture, name: str) -> str:
    racks, servers, per_server = picture.cluster.spec["network"]["shape"]
    columns: list[tuple[str, str, str]] = []
    if "chip 0 -> server switch" in picture.numbers:
        columns.append(("S", "chip {} -> server switch", "server switch -> chip {}"))
    columns.append(("R", "chip {} -> rack switch", "rack switch -> chip {}"))
    side, cell = 11, 11 * (len(columns) + 2 + (picture.cluster.instances > 1)) + 8
    beside = per_server <= 8
    wide, high = 78 + per_server * cell, 46 + servers * 34
    for rack in range(racks):
        left, top = (rack * wide, 0) if beside else (0, rack * high)
        picture.text(left + 4, top + 16, f"rack {rack}", "")
        for server in range(servers):
            number = rack * servers + server
            y = top + 40 + server * 34
            picture.text(left + 70, y + 14, f"server {number}", "end")
            for place in range(per_server):
                chip, x = number * per_server + place, left + 78 + place * cell
                if not server:
                    picture.text(
                        x + cell / 2 - 4, top + 30, f"chip {place}" if beside else str(place)
                    )
                other = (chip + servers * per_server) % (racks * servers * per_server)
                pairs = [(picture.core_links(chip)[::2], picture.core_links(chip)[1::2])]
                pairs += [
                    ([picture.numbers[up.format(chip)]], [picture.numbers[down.format(chip)]])
                    for _, up, down in columns
                ]
                direct = picture.topology.chip_links
                pairs.append(([direct[chip, other]], [direct[other, chip]]))
                if efa := picture.efa_links(chip):
                    pairs.append(([efa[0]], [efa[1]]))
                for index, pair in enumerate(pairs):
                    for half, links in enumerate(pair):
                        picture.box(
                            x + index * side, y + half * side, side - 1.5, side - 1.5, *links
                        )
    total = (racks * wide, high) if beside else (wide, racks * high)
    return picture.done(*total, name)


def _single(picture: Picture, name: str) -> str:
    links = picture.core_links(0)
    for half, word in enumerate(("sends", "receives")):
        picture.text(62, 52 + half * 30, word, "end")
    for core in range(len(links) // 2):
        x = 72 + core * 88
        picture.text(x + 38, 24, f"core {core}")
        for half in range(2):
            picture.box(x, 34 + half * 30, 76, 26, links[2 * core + half])
    return picture.done(72 + len(links) // 2 * 88, 104, name)
