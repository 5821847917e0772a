"""``neuron-dist run``: torchrun, with ranks forked from one process that has imported torch."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import click

from launch.elastic import Parser, launch
from neuron_dist.forking import preload

__all__ = ["Arguments", "command"]


class Arguments(click.Command):
    """A command that gets its arguments as they are: torchrun's options are known to torch."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params = {"args": args}
        return []


@click.command("run", cls=Arguments, add_help_option=False)
@click.pass_context
def command(ctx: click.Context, args: list[str]) -> None:
    """Run a program on several ranks, as torchrun does."""
    parser = Parser(
        ctx,
        "[-n RANKS] [torchrun's options] (SCRIPT | -m MODULE) [its arguments]",
        "Runs a program on several ranks of this machine. Options and environment are torchrun's; ranks are forked "
        "from one process that has imported torch, so that they start in milliseconds.",
    )
    options = parser.parse(args)
    _check_target(options, parser)
    preload()
    sys.exit(launch(options, ctx.command_path))


def _check_target(options: Any, parser: Parser) -> None:
    """Tells of a script that is not there before any rank is started."""
    target = options.training_script
    if options.module:
        top = target.partition(".")[0]
        if importlib.util.find_spec(top) is None and not Path(f"{top}.py").exists() and not Path(top).is_dir():
            parser.error(f"no module named {target!r}")
    elif not options.no_python and not os.path.exists(target):
        path = Path(target)
        known = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        found = difflib.get_close_matches(path.name, known, n=1)
        hint = f"; did you mean {str(path.parent / found[0])!r}?" if found else ""
        parser.error(f"no file {target!r}{hint}")
