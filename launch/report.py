"""``neuron-dist report``: what a run would have taken on its cluster, from its trace: tables here, and a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launch.options import table
from launch.run_folder import folder_argument, or_usage_error

if TYPE_CHECKING:
    from neuron_dist.simulation.analysis import Analysis
    from neuron_dist.simulation.sections import Table
    from neuron_dist.simulation.trace import RankTrace

__all__ = ["command"]


@click.command("report")
@folder_argument
@click.option(
    "--html",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where the page is written [DIR/report.html].",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the numbers as JSON instead of tables."
)
@click.option(
    "--step", type=int, metavar="N", help="Figures of this step alone [mean of all but the first]."
)
@click.option(
    "--no-replay",
    is_flag=True,
    help="Leave out what takes replays of a long run: contended figures, what-if.",
)
def command(
    folder: str, html: str | None, as_json: bool, step: int | None, no_replay: bool
) -> None:
    """Show what a run would have taken on its simulated cluster, and write a page about it.

    DIR holds the run's trace (NEURON_DIST_TRACE). All times are simulated. The page is one file that needs nothing
    else; it also shows the ranks over time, the links by their traffic, HBM and what is assumed.
    """
    from neuron_dist.simulation import report
    from neuron_dist.simulation.analysis import analyse
    from neuron_dist.simulation.to_json import as_dict
    from neuron_dist.simulation.trace import read

    traces = or_usage_error(lambda: read(folder))
    analysis = or_usage_error(lambda: analyse(traces, step))
    contended, rows = (
        (None, None) if no_replay else or_usage_error(lambda: _settled(traces, analysis))
    )
    page = Path(html) if html else Path(folder) / "report.html"
    try:
        report.write(page, analysis, contended, rows)
    except OSError as error:
        raise click.UsageError(f"--html {page}: {error.strerror}") from None
    if as_json:
        found = as_dict(analysis, contended)
        if rows is not None:
            found["what_if"] = [{"name": name, "step_ns": step_ns} for name, step_ns in rows]
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(_text(analysis, contended, rows))
    click.echo(f"page: {page}", err=as_json)


def _settled(
    traces: Sequence[RankTrace], analysis: Analysis
) -> tuple[Analysis | None, list[tuple[str, float]] | None]:
    """(the figures with links shared between all that use them at one time, what-if rows of a name and the simulated
    ns of a step); None of a run whose cluster is described otherwise today, which a replay would price anew."""
    from neuron_dist.simulation.analysis import analyse
    from neuron_dist.simulation.replay import replay
    from neuron_dist.simulation.run_header import cluster_note
    from neuron_dist.simulation.what_if import what_if

    if cluster_note(traces, analysis.cluster) is not None:
        return None, None
    result = replay(traces)
    analysis.notes.extend(f"replay: {note}" for note in result.notes)
    if result.unfinished:
        analysis.notes.append(
            f"the trace ends in the middle, so its replay does, too: {result.unfinished[0]}"
        )
    rows = what_if(traces)
    return analyse(result.traces, analysis.figures.only), [(r.name, r.step_ns) for r in rows]


def _text(analysis: Analysis, contended: Analysis | None, rows: Any) -> str:
    from neuron_dist.simulation import sections, units
    from neuron_dist.simulation.summary import ten_lines

    blocks = [f"Simulated figures\n{ten_lines(analysis.figures)}"]
    blocks += [f"note: {note}" for note in analysis.notes]
    if contended is not None:
        blocks.append(_block("Online and contended", sections.compared(analysis, contended), {0}))
    blocks.append(_block("Steps", sections.steps(analysis)))
    if analysis.collectives:
        blocks.append(
            _block(
                "Collectives, of one group in one step", sections.collectives(analysis), {0, 1, 2}
            )
        )
        blocks.append(_block("Mesh axes, of one rank in one step", sections.axes(analysis), {0}))
    if analysis.links.hot is not None:
        blocks.append(_block("Busiest links", sections.links(analysis, 8), {0}))
    blocks.append(
        _block("Operators, of one rank in one step", sections.kernels(analysis, 8), {0, 1, 7})
    )
    blocks.append(
        _block(
            f"Ranks; rank {analysis.critical_rank} is the critical one",
            sections.ranks(analysis, 16),
        )
    )
    held = [(name, units.memory(nbytes)) for name, nbytes in sections.holders(analysis.hbm)]
    blocks.append(
        f"HBM of rank {analysis.hbm.rank} at its peak\n{table(('held by', 'bytes'), held, {0})}"
    )
    if rows:
        first = rows[0][1]
        shown = [(name, units.time(ns), sections.ratio(ns, first)) for name, ns in rows]
        head = ("mean of all steps", "simulated step", "of the first row")
        blocks.append(f"What if\n{table(head, shown, {0})}")
    if analysis.sites:
        blocks.append(
            _block("What the real TorchNeuron would not do", sections.sites(analysis), {0, 1, 2})
        )
    return "\n\n".join(blocks) + "\n"


def _block(heading: str, shown: Table, left: Iterable[int] = ()) -> str:
    more = f"\n{shown.left}" if shown.left else ""
    return f"{heading}\n{table(shown.head, shown.rows, left)}{more}"
