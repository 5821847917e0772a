"""``neuron-dist explain``: the schedule of one collective, its steps, what was rejected, and the links it uses."""

from __future__ import annotations

import re
from typing import Any

import click
import numpy as np

from collectives.algorithms import names
from collectives.bandwidth import busbw_factor
from collectives.draw import links_table, text
from collectives.planner import Plan, plan
from collectives.schedule import OPS, ROOTED, ScheduleError, chunk_bounds
from collectives.spelling import ranges
from collectives.topology import ClusterError
from launch.options import Bytes, Named, Ranks, cluster_options, load, table

__all__ = ["command"]

DRAWN = 4
"""Instances whose links are drawn."""

LEGENDS = {"torus": "> < v ^ one way, = H both, blank unused; the margin goes round", "single": "none, one chip"}

EXPLAINED = {name: name for name in OPS if name != "permute"}


@click.command("explain")
@click.argument("op", type=Named("op", EXPLAINED))
@click.option("--bytes", "nbytes", type=Bytes(), required=True, help="Size of the whole collective, as nccom-test counts it.")
@click.option("--ranks", type=Ranks(), required=True, help="Global ranks: 0-15, 0,4,8 or 0-63:4 (every fourth).")
@click.option("--root", type=int, help="A rank, for reduce, broadcast, gather and scatter [the first].")
@click.option("--algorithm", type=Named("algorithm", {name: name for name in names()}), help="Explain this one instead of the choice.")
@click.option("--instances", type=click.IntRange(1), default=None, help="Instances of the cluster [as many as the ranks need].")
@click.option("--all-steps", is_flag=True, help="Show steps that are alike one by one.")
@click.option("--links", type=click.IntRange(1), default=8, help="Busiest links to show [8].")
@cluster_options
def command(
    op: str, nbytes: int, ranks: tuple[int, ...], root: int | None, algorithm: str | None, instances: int | None,
    all_steps: bool, links: int, cluster: str | None, lnc: int | None,
) -> None:  # fmt: skip
    """Show the schedule of a collective, what it costs and what was rejected.

    Times are simulated, from the arrival of the last rank. OP is one of all_reduce, reduce, reduce_scatter,
    all_gather, broadcast, gather, scatter, all_to_all, send, barrier.
    """
    if root is not None and op not in ROOTED:
        raise click.UsageError(f"--root is for {', '.join(sorted(ROOTED))}, not for {op}")
    if root is not None and root not in ranks:
        raise click.UsageError(f"--root {root} is not one of --ranks {ranges(ranks)}")
    one = load(cluster, 1, lnc)
    described = load(cluster, instances or max(ranks) // one.cores_per_instance + 1, lnc)
    try:
        p = plan(op, nbytes, ranks, described, root=ranks.index(root) if root is not None else 0, algorithm=algorithm)
    except (ScheduleError, ClusterError) as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"{op} of {nbytes} bytes on {len(ranks)} ranks of {described}; times are simulated, 1 GB = 10^9 bytes\n")
    click.echo(_summary(p, ranks))
    click.echo(f"\nSteps\n{_steps(p, all_steps)}")
    click.echo(f"\nRejected\n{_rejected(p)}")
    click.echo(f"\n{_kinds(p)}")
    click.echo(f"\nBusiest links\n{links_table(p.price.topology, p.price.bytes_by_link, links)}")
    click.echo(_drawing(p), nl=False)


def _summary(p: Plan, ranks: tuple[int, ...]) -> str:
    chips = sorted({int(c) for c in p.group.chip})
    factor = busbw_factor(p.op, len(ranks))
    algbw = p.nbytes / p.time_ns
    bandwidth = "" if factor is None else f"; algbw {algbw:.2f} GB/s, busbw {algbw * factor:.2f} GB/s"
    rows = p.schedule.rows
    channels = int(rows.channel.max(initial=0)) + 1
    sent = p.price.sent_bytes
    each = f"{sent.min()}" if sent.min() == sent.max() else f"{sent.min()} to {sent.max()}"
    return "\n".join(
        (
            f"ranks      {ranges(ranks)}; cores {ranges(p.group.cores.tolist())}; chips {ranges(chips)}",
            f"algorithm  {p.algorithm}: {p.choice.reason}",
            f"time       {p.time_ns / 1e3:.2f} us{bandwidth}",
            f"schedule   {p.steps} steps, {p.schedule.chunks} chunks, {channels} channel(s), {each} bytes sent by a rank",
        )
    )


def _steps(p: Plan, every: bool) -> str:
    """Who sends how much over what, and when the last of it has arrived: a line for steps that are alike."""
    schedule, rows = p.schedule, p.schedule.rows
    segments = schedule.ranks if schedule.op == "all_to_all" else schedule.segments
    sizes = np.diff(chunk_bounds(schedule, p.nbytes // segments))
    ends = np.concatenate([[0], np.cumsum(sizes[schedule.slot_chunk])])
    moved = ends[rows.src_slot + rows.count] - ends[rows.src_slot]
    moving = rows.src != rows.dst
    cores, cluster = p.group.cores, p.group.cluster
    hops = p.price.topology.hops()
    lines: list[tuple[Any, ...]] = []
    for index, step in enumerate(np.unique(rows.step[moving])):
        part = np.flatnonzero((rows.step == step) & moving)
        pairs = np.unique(np.stack([rows.src[part], rows.dst[part]], axis=1), axis=0)
        chip_a, chip_b = cores[pairs[:, 0]] // cluster.logical_cores_per_chip, cores[pairs[:, 1]] // cluster.logical_cores_per_chip
        inside = chip_a // cluster.chips_per_instance == chip_b // cluster.chips_per_instance
        far = hops[chip_a % cluster.chips_per_instance, chip_b % cluster.chips_per_instance][inside]
        over = ["chip"] if (far == 0).any() else []
        over += [f"{low}{f'-{high}' if high > low else ''} link{'s' * (high > 1)}" for low, high in [_span(far[far > 0])] if high]
        over += ["EFA"] if not inside.all() else []
        kinds = {True: "add", False: "copy"}
        kind = " and ".join(kinds[bool(k)] for k in np.unique(rows.reduce[part])[::-1])
        same = (kind, len(pairs), int(moved[part].sum()), " and ".join(over))
        first = lines[-1][0] if lines and lines[-1][2:6] == same and not every else index + 1
        lines[-1 if first <= index else len(lines) :] = [(first, index + 1, *same, f"{p.price.step_ns[index] / 1e3:.2f}")]
    named = [(f"{a}-{b}" if b > a else a, *rest) for a, b, *rest in lines]
    return table(("step", "what", "pairs", "bytes a step", "over", "arrived (us)"), named, left=(1, 4))


def _kinds(p: Plan) -> str:
    """How many links of each kind are in use, and how long the busiest of them is."""
    topology, used = p.price.topology, p.price.bytes_by_link
    kinds: dict[str, list[int]] = {}
    for link, name in enumerate(topology.link_names):
        name = re.sub(r"^instance \d+ ", "", name)
        kind = "EFA" if "EFA" in name else "core to core in a chip" if name.startswith("core") else "chip to switch"
        kinds.setdefault("chip to chip" if re.fullmatch(r"chip \d+ -> chip \d+", name) else kind, []).append(link)
    busy_us = used / topology.link_Bps * 1e6
    lines = [
        (kind, f"{np.count_nonzero(used[i])} of {len(i)}", int(used[i].sum()), f"{busy_us[i].max():.2f}")
        for kind, i in kinds.items()
        if used[i].any()
    ]
    return table(("links (each direction is one)", "in use", "bytes", "busiest (us)"), lines, left=(0,))


def _span(values: np.ndarray) -> tuple[int, int]:
    return (int(values.min()), int(values.max())) if len(values) else (0, 0)


def _rejected(p: Plan) -> str:
    """The priced ones by price, then the others by reason."""
    candidates = p.candidates()
    priced = sorted((c for c in candidates if c.time_ns is not None), key=lambda c: c.time_ns or 0.0)
    lines = []
    for c in priced:
        ratio = (c.time_ns or 0.0) / p.time_ns
        why = f"{ratio:.2f} times as long" + (", but the choice is by Neuron's rule" if ratio < 0.995 else "")
        lines.append((c.algorithm, f"{(c.time_ns or 0.0) / 1e3:.2f}", why))
    reasons: dict[str, list[str]] = {}
    for c in candidates:
        if c.time_ns is None:
            reasons.setdefault(c.reason, []).append(c.algorithm)
    for reason, refused in reasons.items():
        whole = [n for n in refused if n.startswith("hier:")]
        shown = [n for n in refused if n not in whole] + ([f"hier ({len(whole)})"] if len(whole) > 1 else whole)
        lines.append((", ".join(shown), "-", reason))
    return table(("algorithm", "time (us)", "why"), lines, left=(0, 2)) if lines else "none: there is no other algorithm"


def _drawing(p: Plan) -> str:
    topology, cluster = p.price.topology, p.group.cluster
    layout = cluster.spec["network"]["layout"]
    instances = sorted({int(c) // cluster.chips_per_instance for c in p.group.chip})
    parts = []
    for instance in instances[:DRAWN]:
        name = f" of instance {instance}" if len(instances) > 1 else ""
        legend = LEGENDS.get(layout, "not drawn on such a network, which is")
        parts.append(f"Links in use{name}: {legend}\n{text(topology, p.price.bytes_by_link, instance)}")
    if len(instances) > DRAWN:
        parts.append(f"and {len(instances) - DRAWN} more instances\n")
    return "\n".join(parts)
