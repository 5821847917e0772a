"""``neuron-dist run``: torchrun, with ranks forked from one process that has imported torch."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
import threading
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
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="Import this module, too, before ranks are forked: once instead of in every rank, which is for what takes "
        "seconds, such as transformers. It must start no thread and not use the device. Can be repeated.",
    )
    options = parser.parse(args)
    _check_target(options, parser)
    _preload(options.preload, parser)
    sys.exit(launch(options, ctx.command_path))


def _preload(modules: list[str], parser: Parser) -> None:
    """Imports what every rank needs and ``modules``, found as a program in the current directory finds them."""
    if modules:
        # pyarrow's own allocator would start a thread
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        sys.path.insert(0, os.getcwd())
    try:
        preload(*modules)
    except ImportError as error:
        if not modules:
            raise
        parser.error(f"--preload: {error}")
    if modules:
        del sys.path[0]
        if threading.active_count() > 1:
            names = ", ".join(thread.name for thread in threading.enumerate()[1:])
            parser.error(f"--preload {' '.join(modules)}: has started a thread ({names}), which forked ranks would lack")


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
