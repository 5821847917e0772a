"""Pictures of a topology and of the links that a schedule uses: text, and SVG for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectives.topology import Topology

__all__ = ["links_table", "svg", "text"]

COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b9770e")


def text(topology: Topology, bytes_by_link: np.ndarray | None = None, instance: int = 0) -> str:
    """One instance's chips and links as text.

    With ``bytes_by_link`` a link is drawn by its use: ``>`` or ``v`` towards the higher chip only, ``<`` or ``^``
    towards the lower only, ``=`` or ``H`` both, a space unused. Links at the margin go round to the other side.
    """
    network = topology.cluster.spec["network"]
    shape = network["shape"]
    if network["layout"] != "torus":
        return _switched(topology) if network["layout"] == "switched" else "[ 0]\n"
    rows, columns = shape[-2:]
    sheets = []
    for sheet in range(topology.chips // (rows * columns)):
        lines = [f"instance {sheet} of the UltraServer; its chips are also wired to those of the next and the last"]
        lines = lines if len(shape) > 2 else []
        first = sheet * rows * columns

        def mark(a: int, b: int, marks: str) -> str:
            if (a, b) not in topology.chip_links:
                return " "
            if bytes_by_link is None:
                return marks[0]
            shift = instance * topology.links_per_instance
            there = bytes_by_link[topology.chip_links[a, b] + shift] > 0
            back = bytes_by_link[topology.chip_links[b, a] + shift] > 0
            return marks[1 + there + 2 * back]

        for r in range(rows + 1):
            above = [first + (r - 1) % rows * columns + c for c in range(columns)]
            below = [first + r % rows * columns + c for c in range(columns)]
            vertical = [mark(a, b, "| v^H") if rows > 1 else " " for a, b in zip(above, below, strict=True)]
            lines.append("   " + "".join(f"   {v}   " for v in vertical))
            if r < rows:
                line = "".join(f"{mark(below[c - 1], below[c], '- ><=') * 3}[{below[c]:>2}]" for c in range(columns))
                lines.append(line + mark(below[-1], below[0], "- ><=") * 3)
        sheets.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(sheets) + "\n"


def links_table(topology: Topology, bytes_by_link: np.ndarray, most: int = 8) -> str:
    """The busiest links: name, bytes and the time that they are busy."""
    busy_ns = bytes_by_link / topology.link_Bps * 1e9
    lines = [f"{'link':<44}{'bytes':>16}{'busy us':>12}"]
    for link in np.argsort(-busy_ns, kind="stable")[:most]:
        if bytes_by_link[link]:
            lines.append(f"{topology.link_names[link]:<44}{bytes_by_link[link]:>16}{busy_ns[link] / 1e3:>12.2f}")
    return "\n".join(lines) + "\n"


def _switched(topology: Topology) -> str:
    racks, servers, chips = topology.cluster.spec["network"]["shape"]
    lines = []
    for rack in range(racks):
        lines.append(f"rack {rack}: rack switch")
        for server in range(servers):
            first = (rack * servers + server) * chips
            name = " ".join(f"[{first + c:>3}]" for c in range(chips))
            switch = "server switch -" if len(topology.cluster.spec["network"]["link_Bps"]) > 2 else "-"
            lines.append(f"  |- server {rack * servers + server:>2} {switch} {name}")
    lines.append("and each chip has a link to the chip in its place in the other rack")
    return "\n".join(lines) + "\n"


def svg(topology: Topology, cycles: Sequence[Sequence[int]], title: str) -> str:
    """A two-dimensional torus with cycles through its chips in colour; links that go round are drawn as stubs."""
    rows, columns = topology.cluster.spec["network"]["shape"]
    gap, margin = 90, 70
    width, height = (columns - 1) * gap + 2 * margin, (rows - 1) * gap + 2 * margin
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-family="sans-serif">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    colour = {}
    for cycle, shade in zip(cycles, COLOURS, strict=False):
        for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            colour[frozenset((a, b))] = shade
    for a, b in sorted(topology.chip_links):
        if a > b:
            continue
        (ra, ca), (rb, cb) = divmod(a, columns), divmod(b, columns)
        shade = colour.get(frozenset((a, b)), "#bbbbbb")
        stroke = f'stroke="{shade}" stroke-width="5" stroke-linecap="round"'
        xa, ya, xb, yb = margin + ca * gap, margin + ra * gap, margin + cb * gap, margin + rb * gap
        if abs(ra - rb) + abs(ca - cb) == 1:
            parts.append(f'<line x1="{xa}" y1="{ya}" x2="{xb}" y2="{yb}" {stroke}/>')
        else:
            dx, dy = (np.sign(cb - ca) * 50, np.sign(rb - ra) * 50)
            parts.append(f'<line x1="{xa}" y1="{ya}" x2="{xa - dx}" y2="{ya - dy}" {stroke}/>')
            parts.append(f'<line x1="{xb}" y1="{yb}" x2="{xb + dx}" y2="{yb + dy}" {stroke}/>')
    for chip in range(topology.chips):
        r, c = divmod(chip, columns)
        x, y = margin + c * gap, margin + r * gap
        parts.append(f'<circle cx="{x}" cy="{y}" r="19" fill="white" stroke="#333333" stroke-width="2"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-size="15">{chip}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
