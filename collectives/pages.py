"""The documentation's pages on algorithms and topologies, made from the code: python -m collectives.pages docs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from collectives import algorithms
from collectives.algorithms import lookup
from collectives.cost import Pricer
from collectives.draw import links_table, svg, text
from collectives.group import Group
from collectives.topology import load_cluster, product_names, topology_of

__all__ = ["FORMULAS", "Formula", "measured", "pages"]

MI = 1 << 20
NAMES = ("ring", "kangaring", "mesh", "rdh", "hierarchical", "all_to_all", "rooted", "point_to_point")
MODULES = [import_module(f"collectives.algorithms.{name}") for name in NAMES]


@dataclass(frozen=True)
class Formula:
    """The cost of an all_gather (or of the op named); in units of a segment of C bytes, as Python expressions.

    n ranks on P chips of k, p = log2 P, h channels, KangaRing's teams of m, a fully used torus with ``hops``
    links between all ordered pairs of chips together and ``links`` directed links.
    """

    algorithm: str
    op: str
    steps: str
    sent: str
    """Mean over the ranks."""
    busiest: str
    """On the busiest directed link between chips."""


FORMULAS = (
    Formula("ring", "all_gather", "n - 1", "n - 1", "(n - 1) / h"),
    Formula("kangaring", "all_gather", "n / m", "n - 1", "(n - m) / h"),
    Formula("mesh", "all_gather", "2", "n - 1", "k * hops / links"),
    Formula("rdh", "all_gather", "p + 1", "n - 1", "max(sum(2 ** (p - 1 - (a - j) % p) for j in range(k)) for a in range(p))"),
    Formula("mesh_single_step", "all_reduce", "1", "n * (n - 1)", "n * k * k * hops / links"),
    Formula("mesh", "all_to_all", "1", "n - 1", "k * k * hops / links"),
)  # fmt: skip


def measured(algorithm: str, op: str, group: Group, nbytes: int) -> tuple[int, float, int, float]:
    """(steps, mean bytes that a rank sends, bytes on the busiest link between chips, time in ns)."""
    schedule = lookup(algorithm, op).build(op, group)
    price = Pricer(schedule, group).price(nbytes)
    links = list(group.topology.chip_links.values())
    busiest = int(price.bytes_by_link[links].max()) if links else 0
    return schedule.steps, float(price.sent_bytes.mean()), busiest, price.time_ns


def variables(group: Group) -> dict[str, float]:
    """The formulas' variables for a group on whole chips of one instance."""
    P, k = group.by_chip.shape
    return {
        "n": group.size, "P": P, "k": k, "p": P.bit_length() - 1, "h": len(group.chip_cycles), "m": max(2, k // 2),
        "hops": int(group.topology.hops().sum()), "links": len(group.topology.chip_links),
    }  # fmt: skip


def algorithms_page() -> str:
    """docs/algorithms.md."""
    lines = [
        "# Algorithms",
        "",
        "<!-- made by `python -m collectives.pages docs`; do not edit -->",
        "",
        "A collective is a schedule: a list of transfers of chunks between ranks, which is proved, priced on the links,",
        "and gives the order in which the engine adds. `NEURON_DIST_ALGORITHM=ring` (or `all_reduce=rdh,all_gather=ring`)",
        "overrides Neuron's choice; [the rules](#the-choice) are below.",
        "",
        "## Costs",
        "",
        "n ranks on P chips of k, p = log2 P, h channels, teams of m ranks (KangaRing), C the bytes of one rank's segment.",
        "A reduce_scatter costs what the all_gather costs, an all_reduce both. Bytes are those that a rank sends on average",
        "and those on the busiest directed link between chips; `hops` is the length of all routes between chips together",
        "and `links` the directed links, for a group on every chip of a torus. The tests check each formula against the",
        "routed schedule.",
        "",
        "| algorithm | op | steps | bytes a rank / C | bytes on the busiest link / C |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {f.algorithm} | {f.op} | `{f.steps}` | `{f.sent}` | `{f.busiest}` |" for f in FORMULAS]
    lines += [
        "| hier:A+B | all_gather | steps of A and of B | those of A and of B | as A inside; over EFA each instance of an "
        "all_reduce of B bytes sends `2 (X - 1) / X * B` |",
        "| tree | broadcast, reduce, gather, scatter | `ceil(log2 n)` | a segment or the tensor to each child | |",
        "| direct | broadcast, reduce, gather, scatter | 1 | the root's links carry everything | |",
        "| p2p | send, permute | 1 | the message | |",
        "",
        "The time of a schedule: in each step a transfer takes alpha (the route's latency) and beta * bytes, where",
        "transfers that share a link in the step share its bandwidth; a rank goes on when what it was sent has arrived.",
        "`collectives/cost.py` has the details, [topology.md](topology.md) the parameters.",
        "",
        "## A full trn2.48xlarge, 64 ranks, all_reduce",
        "",
        "| algorithm | steps | bytes a rank / B | busiest link / B | 1 KiB us | 4 MiB us | 512 MiB us |",
        "|---|---|---|---|---|---|---|",
    ]
    group = Group(load_cluster(), range(64))
    for name in ("ring", "kangaring", "mesh", "rdh", "mesh_single_step"):
        times = [measured(name, "all_reduce", group, size)[3] / 1e3 for size in (1024, 4 * MI, 512 * MI)]
        steps, sent, busiest, _ = measured(name, "all_reduce", group, 64 * MI)
        lines.append(
            f"| {name} | {steps} | {sent / (64 * MI):.3f} | {busiest / (64 * MI):.3f} | "
            + " | ".join(f"{t:.1f}" for t in times) + " |"
        )  # fmt: skip
    lines += [
        "",
        "## The choice",
        "",
        "Inside an instance (all that NeuronLink joins, so the whole UltraServer): Mesh below 1 MB, RDH up to 875 kB a rank",
        "(56 MB on a full node), KangaRing above. Ring where a chip holds one rank or chips hold different numbers, and for",
        "large messages where chips are not wholly in the group. On Trainium3's switches Mesh and Ring. Over instances",
        "hierarchical, with the cheapest of Mesh, RDH and Ring between; flat Mesh or Ring where the instances do not hold",
        "the same cores. Collectives that the host drives in Neuron 2.32 are Ring only (a known issue there):",
        "`NEURON_DIST_ALGORITHM=ring` shows their times. `broadcast` and `reduce` are trees while small; `gather` and `scatter` trees, then direct.",
        "",
        "## The algorithms",
        "",
    ]
    for module in MODULES:
        title, _, rest = (module.__doc__ or "").partition("\n")
        lines += [f"### {title.rstrip('.')}", "", "```text", rest.strip("\n").rstrip(), "```", ""]
    lines += [
        "## One of your own",
        "",
        "```python",
        *_dedented((algorithms.__doc__ or "").partition("\n\n")[2].split("\n\nAn algorithm")[0]),
        "```",
        "",
        "It is proved before it is used: an error names the chunk, the rank and the contribution that is lacking or",
        "repeated.",
        "",
        "## Limits",
        "",
        "- Additions are priced as overlapped with the transfers, and nothing contends for HBM with compute.",
        "- The flat ring that Neuron uses on Trn1 for large messages over instances is there (`ring`) but is not chosen.",
        "- Mesh spreads a chip's senders over its ranks in turns; AWS picks the rank closest to the arrival port, and does",
        "  not publish the port of every rank.",
        "- An all_to_allv runs the schedule of the all_to_all with its own chunk sizes.",
        "",
    ]
    return "\n".join(lines)


def topology_page() -> str:
    """docs/topology.md."""
    lines = [
        "# Topology",
        "",
        "<!-- made by `python -m collectives.pages docs`; do not edit -->",
        "",
        "```python",
        "from collectives.topology import load_cluster, topology_of",
        "",
        'cluster = load_cluster("trn2.48xlarge", instances=2, lnc=2)   # or the path of your own YAML',
        "topology = topology_of(cluster)",
        "topology.neighbours(0)        # [12, 3, 4, 1]: up, left, down, right, as neuron-ls prints them",
        "topology.route(0, 20)         # links from logical core 0 to 20",
        "```",
        "",
        "## Products",
        "",
        "| product | chips | logical cores | links between chips | GB/s of a link each way, usable | EFA, GB/s each way, usable |",
        "|---|---|---|---|---|---|",
    ]
    for product in product_names():
        cluster = load_cluster(product)
        topology = topology_of(cluster)
        kinds = sorted({round(topology.link_Bps[i] / 1e9, 1) for i in topology.chip_links.values()})
        if cluster.spec["network"]["layout"] == "switched":
            kinds += [round(b / 1e9 * cluster.parameters["link_efficiency"], 1) for b in cluster.spec["network"]["link_Bps"][1:]]
        efa = "none" if topology.efa_out[0] < 0 else f"{topology.link_Bps[topology.efa_out[0]] / 1e9:.1f}"
        lines.append(
            f"| {product} | {topology.chips} | {cluster.cores} | {len(topology.chip_links) // 2} | "
            f"{', '.join(map(str, kinds)) or 'none'} | {efa} |"
        )
    trn2 = topology_of(load_cluster())
    group = Group(load_cluster(), range(16))
    schedule = lookup("ring", "all_gather").build("all_gather", group)
    ring = Pricer(schedule, group).price(16 * MI)
    lines += [
        "",
        "Usable is the published number, divided between the directions where it counts both, times the efficiency.",
        "",
        "## trn1.32xlarge, trn2.48xlarge: a 4 x 4 torus",
        "",
        "Chip d is at row d // 4, column d % 4; every link at the margin goes round to the other side. 32 links, diameter 4,",
        "mean distance 32 / 15.",
        "",
        "```text",
        text(trn2).rstrip("\n"),
        "```",
        "",
        "Two cycles through all chips that share no link (our own search: AWS says that there are two and not which). In both",
        "directions they are the four channels of a full node.",
        "",
        "![the two cycles](images/trn2-cycles.svg)",
        "",
        "The links that a ring all_gather over ranks 0-15 (a row of four chips) uses, `=` in both directions:",
        "",
        "```text",
        text(trn2, ring.bytes_by_link).rstrip("\n"),
        "",
        links_table(trn2, ring.bytes_by_link, 4).rstrip("\n"),
        "```",
        "",
        "Routes go along the row first and then along the column; half-way round, an even place goes up and an odd one down,",
        "so that all-to-all traffic loads every link alike. As a 4-D hypercube (AWS's routing ids) chips have the labels",
        f"`{trn2.cluster.spec['network']['labels']}` (label -> chip): one bit flipped is one link.",
        "",
        "## trn2-ultraserver: 4 x 4 x 4",
        "",
        "Chips of one place in the four instances form a ring; chip = 16 * instance + 4 * row + column. Mean distance 192 / 63.",
        "",
        "```text",
        text(topology_of(load_cluster("trn2-ultraserver"))).split("\n\n")[0],
        "```",
        "",
        "## trn3-gen1, trn3-gen2: switches",
        "",
        "```text",
        "\n".join([*text(topology_of(load_cluster("trn3-gen1"))).splitlines()]),
        "```",
        "",
        "Gen2 has 36 servers of 4 chips with a switch of their own.",
        "",
        "## Instances over EFA",
        "",
        "A transfer to another instance leaves by the sending chip's EFA and enters by the receiving chip's (on trn1.32xlarge",
        "two chips share one); the fabric in between never blocks. The UltraServer counts as one instance.",
        "",
        "## Assumptions",
        "",
        "What AWS does not publish or contradicts itself on has a name, which `load_cluster(assumptions={...})` or a YAML sets.",
        "",
    ]
    for product in ("trn2.48xlarge", "trn1.32xlarge", "trn3-gen2"):
        lines += [f"### {product}", "", "| name | value | alternatives | source or fit |", "|---|---|---|---|"]
        spec = load_cluster(product).spec
        for name, entry in {**spec["assumptions"], **spec["fitted"]}.items():
            alternatives = ", ".join(map(str, entry.get("alternatives", []))) or "fitted"
            source = entry.get("source") or f"fitted to {entry['fitted_to']}"
            lines.append(f"| `{name}` | {entry['value']} | {alternatives} | {source} |")
        lines.append("")
    lines += [
        "Eight parameters are fitted: the six above and two constants of test set-ups in `benchmarks/fidelity.py`, which prints",
        "every published point with ours beside it:",
        "",
        "```console",
        "$ python benchmarks/fidelity.py          # --all adds a third-party table, --json for programs",
        "```",
        "",
        "The two constants carry most of tables J (two streams) and K (the runtime of 2023) at small sizes, so those points",
        "check the constant's one value over many sizes, not the latency of the algorithms; D, E and F do that.",
        "",
        "## Your own cluster",
        "",
        "```yaml",
        "extends: trn2.48xlarge     # every key that is not given comes from there",
        "product: half",
        "chips: 8",
        "network:",
        "  shape: [2, 4]",
        "  labels: []",
        "  cycles: []",
        "assumptions:",
        "  efa_efficiency: {value: 0.6, source: measured here}",
        "```",
        "",
        "`load_cluster(\"half.yaml\")`; a wrong key is refused by its name, with the nearest known one.",
        "",
        "## Limits",
        "",
        "- Inside a chip a transfer takes the DMA of both cores; HBM stacks, ports and the axes inside a chip are not modelled.",
        "- No jitter, no congestion inside the EFA fabric, no failed links.",
        "- Trn3 Gen1's wiring follows the picture of the architecture page; two other pictures disagree with it.",
        "- Physical places of logical cores on Trn3 are taken in order.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _dedented(block: str) -> list[str]:
    return [line.removeprefix("    ") for line in block.rstrip().split("\n")]


def pages() -> dict[str, str]:
    """Path below docs/ -> content."""
    trn2 = topology_of(load_cluster())
    cycles = trn2.cluster.spec["network"]["cycles"]
    return {
        "algorithms.md": algorithms_page(),
        "topology.md": topology_page(),
        "images/trn2-cycles.svg": svg(trn2, cycles, "Two edge-disjoint Hamiltonian cycles of the 4 x 4 torus"),
    }


def main(folder: Path) -> None:
    for name, content in pages().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
