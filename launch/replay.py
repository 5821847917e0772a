"""``neuron-dist replay``: a recorded run once more, on links that its groups share or on another cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from collectives.draw import links_table
from collectives.schedule import ScheduleError
from collectives.spelling import ranges
from collectives.topology import Cluster, ClusterError
from launch.options import cluster_options, load, table

__all__ = ["command"]


@click.command("replay")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@cluster_options
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=None,
    help="Instances of the cluster [as many as the ranks need].",
)
@click.option(
    "--uncontended", is_flag=True, help="Let no group slow another, as the clock of the run did."
)
@click.option(
    "--what-if",
    "factor",
    type=float,
    help="Also answer what K times faster parts of the machine would bring.",
    metavar="K",
)
@click.option("--links", type=click.IntRange(1), default=8, help="Busiest links to show [8].")
@click.option(
    "--json",
    "as_json",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write the numbers there.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the traces at the new times there.",
)
def command(
    folder: Path, cluster: str | None, lnc: int | None, instances: int | None, uncontended: bool, factor: float | None,
    links: int, as_json: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Replay the trace in DIR (of NEURON_DIST_TRACE) with all groups sharing the links of the cluster.

    The clock of a run takes every collective as if it were alone: the times `online`. Here those that are under way
    at once share each link's bandwidth fairly. The cluster is that of the run unless --cluster, --lnc or --instances
    say otherwise; on another one, operators take the time of its cores and collectives are planned anew.
    """
    from neuron_dist.simulation.replay import replay
    from neuron_dist.simulation.retime import write
    from neuron_dist.simulation.trace import TraceError, read
    from neuron_dist.simulation.what_if import what_if

    if factor is not None and factor <= 0:
        raise click.UsageError(f"--what-if {factor:g}: expected a number above 0")
    if out is not None and out.resolve() == folder.resolve():
        raise click.UsageError(f"--out {out}: that is the run's own trace, expected another folder")
    try:
        traces = read(folder)
        target = _cluster(traces[0].header, len(traces), cluster, lnc, instances)
        result = replay(traces, target, contended=not uncontended)
        answers = (
            what_if(traces, target, factor=factor, contended=not uncontended) if factor else []
        )
    except (TraceError, ClusterError, ScheduleError) as error:
        raise click.UsageError(str(error)) from None
    numbers = _numbers(result, traces, answers)
    try:
        if out is not None:
            for trace in result.traces:
                if (
                    cluster is not None
                ):  # as it was named: a file's product has no name that loads it
                    trace.header["cluster"] = trace.header["cluster"] | {"product": cluster}
                write(trace, out)
        if as_json is not None:
            as_json.write_text(json.dumps(numbers, indent=1) + "\n")
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    _print(numbers, links, result)


def _cluster(
    header: dict[str, Any], ranks: int, product: str | None, lnc: int | None, instances: int | None
) -> Cluster | None:
    """The cluster that the options name; None for the recorded one."""
    if product is None and lnc is None and instances is None:
        return None
    recorded = header["cluster"]
    if product is None:  # the recorded product otherwise
        product, lnc = recorded["product"], recorded["lnc"] if lnc is None else lnc
    one = load(product, 1, lnc)
    return load(product, instances or (ranks - 1) // one.cores_per_instance + 1, lnc)


def _numbers(result: Any, recorded: Sequence[Any], answers: Sequence[Any]) -> dict[str, Any]:
    """Everything that the command prints, for JSON."""
    from neuron_dist.simulation.replay import step_times

    online = {s.step: s for s in step_times(recorded)}
    steps = [
        {
            "step": s.step, "online_ns": online[s.step].time_ns, "replayed_ns": s.time_ns, "compute_ns": s.compute_ns,
            "online_exposed_ns": online[s.step].exposed_ns, "exposed_ns": s.exposed_ns, "overlapped_ns": s.overlapped_ns,
        }
        for s in result.steps
    ]  # fmt: skip
    kinds: dict[tuple[str, str, int], list[Any]] = {}
    for outcome in result.outcomes:
        kinds.setdefault((outcome.group, outcome.op, len(outcome.ranks)), []).append(outcome)
    operations = []
    for (group, op, ranks), outcomes in sorted(kinds.items()):
        alone, taken = sum(o.alone_ns for o in outcomes), sum(o.time_ns for o in outcomes)
        operations.append(
            {
                "group": group, "op": op, "ranks": ranks, "algorithms": sorted({o.algorithm for o in outcomes} - {""}),
                "count": len(outcomes), "bytes": sum(o.nbytes for o in outcomes), "uncontended_ns": alone,
                "contended_ns": taken, "slowdown": taken / alone if alone else 1.0,
                "largest_slowdown": max(o.slowdown for o in outcomes),
            }
        )  # fmt: skip
    names, span = result.topology.link_names, max(result.makespan_ns, 1)
    links = [
        {
            "name": names[i], "bytes": int(result.link_bytes[i]), "busy_ns": float(result.link_busy_ns[i]),
            "busy_share": float(result.link_busy_ns[i]) / span, "lost_ns": float(result.link_lost_ns[i]),
        }
        for i in result.link_bytes.nonzero()[0].tolist()
    ]  # fmt: skip
    return {
        "cluster": str(result.cluster),
        "recorded_cluster": recorded[0].header["cluster"]["name"],
        "contended": result.contended,
        "ranks": len(recorded),
        "online_ns": max(int(t.records["end_ns"].max(initial=0)) for t in recorded),
        "replayed_ns": result.makespan_ns,
        "steps": steps,
        "operations": operations,
        "links": links,
        "what_if": [{"name": row.name, "step_ns": row.step_ns} for row in answers],
        "unfinished": [
            {"rank": u.rank, "waits_for": u.waits_for, "because": u.because, "left_out": u.left_out}
            for u in result.unfinished
        ],
        "notes": result.notes,
    }


def _print(numbers: dict[str, Any], most_links: int, result: Any) -> None:
    where = numbers["cluster"]
    if where != numbers["recorded_cluster"]:
        where += f", recorded on {numbers['recorded_cluster']}"
    how = "groups share links" if numbers["contended"] else "no contention"
    click.echo(f"{numbers['ranks']} ranks on {where}; {how}; times are simulated")
    click.echo(f"\nSteps\n{_steps(numbers)}")
    click.echo(
        f"\nCollectives and messages, from the last arrival\n{_operations(numbers['operations'])}"
    )
    if numbers["links"]:
        hot = max(numbers["links"], key=lambda link: link["busy_ns"])
        click.echo(
            f"\nHot link: {hot['name']}, busy {hot['busy_share']:.1%} of {_us(numbers['replayed_ns'])} us"
        )
        click.echo(links_table(result.topology, result.link_bytes, most_links).rstrip())
        waited = sorted(
            (li for li in numbers["links"] if li["lost_ns"] >= 5),
            key=lambda li: (-li["lost_ns"], li["name"]),
        )
        if waited:
            lines = [(li["name"], _us(li["lost_ns"])) for li in waited[:most_links]]
            click.echo(
                f"\nWhere transfers were held up by others; time of all of them\n{table(('link', 'lost (us)'), lines, left=(0,))}"
            )
    if numbers["what_if"]:
        first = numbers["what_if"][0]["step_ns"]
        rows = [
            (r["name"], _us(r["step_ns"]), f"{r['step_ns'] / first:.3f}" if first else "-")
            for r in numbers["what_if"]
        ]
        click.echo(f"\nWhat if\n{table(('', 'step (us)', 'ratio'), rows, left=(0,))}")
    for note in numbers["notes"]:
        click.echo(f"\nNote: {note}")
    if result.unfinished:
        click.echo("\nThe trace ends in the middle; replayed as far as all ranks can go:")
        for unfinished in result.unfinished:
            click.echo(f"  {unfinished}")


def _steps(numbers: dict[str, Any]) -> str:
    if not numbers["steps"]:
        whole = (
            "whole run",
            _us(numbers["online_ns"]),
            _us(numbers["replayed_ns"]),
            _ratio(numbers["replayed_ns"], numbers["online_ns"]),
        )
        return table(("", "online (us)", "replayed (us)", "ratio"), [whole], left=(0,))
    alike: dict[tuple[str, ...], list[int]] = {}  # most steps of a run are
    for s in numbers["steps"]:
        line = (
            _us(s["online_ns"]), _us(s["replayed_ns"]), _ratio(s["replayed_ns"], s["online_ns"]), _us(s["compute_ns"]),
            _us(s["online_exposed_ns"]), _us(s["exposed_ns"]), _us(s["overlapped_ns"]),
        )  # fmt: skip
        alike.setdefault(line, []).append(s["step"])
    lines = [(ranges(steps), *line) for line, steps in alike.items()]
    header = (
        "step",
        "online (us)",
        "replayed (us)",
        "ratio",
        "compute (us)",
        "online exposed (us)",
        "exposed (us)",
        "overlapped (us)",
    )
    return table(header, lines)


def _operations(operations: Sequence[dict[str, Any]]) -> str:
    if not operations:
        return "none"
    lines = [
        (o["group"], o["op"], o["ranks"], ", ".join(o["algorithms"]) or "-", o["count"], o["bytes"], _us(o["uncontended_ns"]),
         _us(o["contended_ns"]), f"{o['slowdown']:.3f}", f"{o['largest_slowdown']:.3f}")
        for o in operations
    ]  # fmt: skip
    header = (
        "group",
        "op",
        "ranks",
        "algorithm",
        "count",
        "bytes",
        "uncontended (us)",
        "contended (us)",
        "slowdown",
        "largest",
    )
    return table(header, lines, left=(0, 1, 3))


def _ratio(new: float, old: float) -> str:
    return f"{new / old:.3f}" if old else "-"


def _us(ns: float) -> str:
    return f"{ns / 1e3:.2f}"
