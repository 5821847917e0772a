"""``neuron-dist nccom-test``: nccom-test's arguments, columns and JSON, with simulated times."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from collectives.schedule import ScheduleError
from collectives.topology import Cluster, ClusterError
from launch.arguments import CHECKS, NccomCommand, no_repeats, read_groups
from launch.options import Bytes, Named, cluster_options, load, table
from launch.sweep import DTYPES, OPS, Point, Setting, point, sizes

__all__ = ["command"]

MOST_RANKS = max(16, 2 * (os.cpu_count() or 1))
"""Ranks that are started here; more only take turns on the cores of this machine."""

OP_NAMES = {name: op for op in OPS for name in (op.name, op.short) if name}


@click.command("nccom-test", cls=NccomCommand)
@click.argument("op", type=Named("op", OP_NAMES))
@click.option("-r", "--nworkers", "ranks", type=click.IntRange(1), required=True, help="Ranks, on all nodes together.")
@click.option("-N", "--nnodes", "nodes", type=click.IntRange(1), default=1, help="Instances; the ranks are divided equally [1].")
@click.option("-b", "--minbytes", type=Bytes(), default="32M", help="First size [32M].")
@click.option("-e", "--maxbytes", type=Bytes(), help="Last size [32M].")
@click.option("-i", "--stepbytes", type=Bytes(), help="Bytes from size to size [(max - min) / 10].")
@click.option("-f", "--stepfactor", type=click.FloatRange(1, min_open=True), help="Factor from size to size.")
@click.option("-n", "--iters", type=click.IntRange(1), default=20, help="Measured operations, with --wall [20].")
@click.option("-w", "--warmup_iters", "--warmup-iters", "warmup", type=click.IntRange(0), default=5, help="Operations before them [5].")
@click.option("-I", "--neff_iters", "rounds", type=click.IntRange(1), default=1, help="Measured rounds of -n and -w operations [1].")
@click.option("-W", "--neff_warmup_iters", "warmup_rounds", type=click.IntRange(0), default=0, help="Rounds before them [0].")
@click.option("-d", "--datatype", type=Named("type", {name: name for name in DTYPES}), default="uint8", help=f"{', '.join(DTYPES)} [uint8].")
@click.option("-c", "--check", "check", type=Named("mode", {m: m for m in CHECKS}), help="Verify the data; random (if nothing follows) or all_ones.")
@click.option("--seed", type=int, default=0, help="Of the random data of --check [0].")
@click.option("-t", "--stats", default="avg", help="Statistics of the time: avg, p50, p99 ... [avg].")
@click.option("--show-algorithm", is_flag=True, help="The algorithm is always shown.")
@click.option("--show-input-output-size", "in_out", is_flag=True, help="Also show a rank's input and output bytes.")
@click.option("--report-to-json-file", "json_file", type=click.Path(dir_okay=False, writable=True), help="Also write the results as JSON.")
@click.option("--custom-replica-groups", "--custom-replica-group", "groups_file", help='JSON file {"replica_groups": [[[0, 1], [2, 3]]]}.')
@click.option("--custom-src-target-pairs", "pairs_file", help='JSON file {"src_target_pairs": [[[0, 1], [1, 0]]]}, for permute.')
@click.option("--data-parallel-dimension", "parallel", type=click.IntRange(1), help="Ranks of a group; rank r is in group r mod (ranks / this).")
@click.option("--non-interactive", is_flag=True, help="Always so.")
@click.option("--wall", is_flag=True, help="Also run it in real ranks on this machine and show the time.")
@cluster_options
def command(
    op: Any, ranks: int, nodes: int, minbytes: int, maxbytes: int | None, stepbytes: int | None,
    stepfactor: float | None, iters: int, warmup: int, rounds: int, warmup_rounds: int, datatype: str, check: str | None,
    seed: int, stats: str, show_algorithm: bool, in_out: bool, json_file: str | None, groups_file: str | None,
    pairs_file: str | None, parallel: int | None, non_interactive: bool, wall: bool, cluster: str | None, lnc: int | None,
) -> None:  # fmt: skip
    """Price a collective operation, with nccom-test's arguments and columns.

    Times are simulated: each size's schedule is priced on the links of the cluster, from the arrival of the last rank.
    They do not vary, so all statistics of one size are equal. With --wall there is also what it took here.

    OP is one of all_reduce (allr), all_gather (allg), all_gatherv (allgv), reduce_scatter (redsct), sendrecv, alltoall,
    alltoallv, permute.
    """
    largest = max(minbytes, 32 << 20) if maxbytes is None else maxbytes
    _check_sizes(minbytes, largest)
    described = _cluster(cluster, nodes, lnc, ranks)
    groups = _groups(groups_file, parallel, ranks)
    setting = Setting(op, datatype, described, groups, _pairs(op, pairs_file, ranks, groups), cluster)
    most = min(MOST_RANKS, described.cores_per_instance)
    if wall and ranks > most:
        raise click.UsageError(f"--wall: -r {ranks} is more than can be run here, expected at most {most}")
    sweep = sizes(setting, minbytes, largest, stepbytes, stepfactor)
    names = stats.split(",")
    try:
        points = [point(setting, size) for size in sweep]
    except (ScheduleError, ClusterError) as error:
        raise click.UsageError(str(error)) from None
    many = f", {len(groups)} groups at once" if len(groups) > 1 else ""
    click.echo(f"# {op.name}, {ranks} ranks{many} on {described}: simulated times. 1 GB = 10^9 bytes")
    measured, problems = None, []
    if wall or check:
        from launch.real import run

        iterations = (rounds, warmup_rounds, iters, warmup) if wall else None
        real = run(setting, points, iterations, check, seed, most)
        measured, problems = real.wall_us, real.problems
        for note in real.notes:
            click.echo(f"# {note}")
    rows = [_row(p, setting, names, in_out, measured[i] if measured else None) for i, p in enumerate(points)]
    if rows:
        click.echo(table(list(rows[0]), ([_text(k, v) for k, v in row.items()] for row in rows)))
    click.echo("".join(f"# failed: {p}\n" for p in problems), nl=False)
    if json_file:
        _write(json_file, rows)
    click.echo(f"Avg bus bandwidth:\t{sum(p.busbw_Bps for p in points) / len(points) / 1e9:.4f}GB/s")
    if problems:
        raise SystemExit(1)


def _row(p: Point, setting: Setting, names: Sequence[str], in_out: bool, wall: Sequence[float] | None) -> dict[str, Any]:
    """A line of the table, and of the JSON."""
    row: dict[str, Any] = {"size(B)": p.nbytes, "count(elems)": p.count}
    if in_out:
        row |= {"total_input_size(B)": p.input_bytes, "total_output_size(B)": p.output_bytes}
    row["type"] = setting.dtype
    row |= {f"time:{name}(us)": p.time_ns / 1e3 for name in names}
    row |= {"algbw(GB/s)": p.algbw_Bps / 1e9, "busbw(GB/s)": p.busbw_Bps / 1e9, "algorithm": p.algorithm}
    if wall is not None:
        import numpy as np

        for name in names:
            value = np.mean(wall) if name == "avg" else np.percentile(wall, int(name[1:]))
            row[f"wall:{name}(us)"] = float(value)
    return row


def _text(name: str, value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _write(path: str, rows: list[dict[str, Any]]) -> None:
    try:
        with open(path, "w") as file:
            json.dump({"results": rows}, file, indent=4)
    except OSError as error:
        raise click.UsageError(f"--report-to-json-file {path}: {error.strerror}") from None


def _check_sizes(smallest: int, largest: int) -> None:
    if smallest < 1:
        raise click.UsageError(f"--minbytes is {smallest}, expected at least 1")
    if largest < smallest:
        raise click.UsageError(f"--maxbytes is {largest}, expected at least --minbytes, {smallest}")


def _cluster(product: str | None, nodes: int, lnc: int | None, ranks: int) -> Cluster:
    """The cluster with the ranks divided equally among its instances."""
    if ranks % nodes:
        raise click.UsageError(f"-r {ranks} does not divide equally among -N {nodes} nodes")
    cluster, each = load(product, nodes, lnc), ranks // nodes
    most = cluster.cores_per_instance
    if each > most:
        raise click.UsageError(
            f"-r {ranks} with -N {nodes}: {each} ranks a node, but {cluster.product} (LNC {cluster.lnc}) has {most} "
            f"logical cores; -N {-(-ranks // most)} has room"
        )
    if each == most:
        return cluster
    return load(product, nodes, lnc, mapping=[node * most + i for node in range(nodes) for i in range(each)])


def _groups(path: str | None, parallel: int | None, ranks: int) -> tuple[tuple[int, ...], ...]:
    if path and parallel:
        raise click.UsageError("--custom-replica-groups and --data-parallel-dimension exclude each other")
    if path:
        groups = read_groups("--custom-replica-groups", path, "replica_groups", ranks)
        no_repeats(f"--custom-replica-groups {path}", [r for group in groups for r in group])
        return groups
    if parallel:
        if ranks % parallel:
            raise click.UsageError(f"--data-parallel-dimension is {parallel}, expected a divisor of -r {ranks}")
        return tuple(tuple(range(first, ranks, ranks // parallel)) for first in range(ranks // parallel))
    return (tuple(range(ranks)),)


def _pairs(op: Any, path: str | None, ranks: int, groups: Any) -> tuple[tuple[int, int], ...]:
    if op.name != "permute":
        if path:
            raise click.UsageError(f"--custom-src-target-pairs is for permute, not for {op.name}")
        return ()
    if not path:
        raise click.UsageError("permute needs --custom-src-target-pairs FILE")
    if len(groups) > 1:
        raise click.UsageError("permute runs in one group; leave --custom-replica-groups out")
    option = "--custom-src-target-pairs"
    found = read_groups(option, path, "src_target_pairs", ranks)
    wrong = next((pair for pair in found if len(pair) != 2), None)
    if wrong is not None:
        raise click.UsageError(f"{option} {path}: {list(wrong)} is not a pair [source, target]")
    for side, name in enumerate(("sources", "targets")):
        no_repeats(f"{option} {path}: {name}", [pair[side] for pair in found])
    return tuple((a, b) for a, b in found)
