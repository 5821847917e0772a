"""The commands by name; each is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from launch.options import near

__all__ = ["main"]

COMMANDS = {
    "check": ("launch.check", "Validate a recipe; show its layout, the memory of its ranks and what TorchNeuron refuses."),
    "explain": ("launch.explain", "Show the schedule of a collective, what it costs and what was rejected."),
    "fidelity": ("launch.fidelity", "Show what the real TorchNeuron would refuse."),
    "ls": ("launch.ls", "Show the simulated devices, as neuron-ls does."),
    "nccom-test": ("launch.nccom_test", "Price collectives, with nccom-test's arguments and columns."),
    "recipes": ("launch.recipes", "List the recipes that ship with the package."),
    "replay": ("launch.replay", "Replay a recorded run with groups that share links, or on another cluster."),
    "report": ("launch.report", "Show what a run would have taken on its cluster, and write a page about it."),
    "run": ("launch.run", "Run a program on several ranks, as torchrun does, and start them faster."),
    "trace": ("launch.trace", "Write a run as a Chrome trace, for Perfetto."),
    "train": ("launch.train", "Train a TorchTitan recipe."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[name][0]).command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            expected = ", ".join(COMMANDS)
            ctx.fail(f"no command {args[0]!r}, expected one of {expected}{near(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def _group() -> None:
    """Tools for a simulated AWS Trainium cluster.

    The cluster is that of NEURON_DIST_CLUSTER (trn2.48xlarge unless set) or of --cluster.
    """


def main(args: Sequence[str] | None = None, prog_name: str = "neuron-dist") -> None:
    """Runs the command line; ends the process."""
    _group(args=list(args) if args is not None else None, prog_name=prog_name)
