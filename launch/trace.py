"""``neuron-dist trace``: a run as a Chrome trace, to be looked at in ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from pathlib import Path

import click

from launch.run_folder import folder_argument, or_usage_error

__all__ = ["command"]


@click.command("trace")
@folder_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    metavar="FILE.json",
    help="Compressed if it ends in .gz [DIR/trace.json.gz].",
)
def command(folder: str, output: str | None) -> None:
    """Write a run as a Chrome trace: ranks, streams, collectives, HBM and link use over simulated time.

    DIR holds the run's trace (NEURON_DIST_TRACE). Load the file in ui.perfetto.dev or chrome://tracing. Collectives
    carry the fields of Neuron Explorer's CcOp records.
    """
    from neuron_dist.simulation import chrome
    from neuron_dist.simulation.analysis import analyse
    from neuron_dist.simulation.trace import read

    traces = or_usage_error(lambda: read(folder))
    analysis = or_usage_error(lambda: analyse(traces))
    path = Path(output) if output else Path(folder) / "trace.json.gz"
    try:
        count = or_usage_error(lambda: chrome.write(path, analysis))
    except OSError as error:
        raise click.UsageError(f"-o {path}: {error.strerror}") from None
    click.echo(
        f"{path}: {count} events of {len(traces)} ranks, simulated time; open it in ui.perfetto.dev"
    )
