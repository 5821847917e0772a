"""``neuron-dist train``: trains a TorchTitan recipe on ranks forked from one process that has imported TorchTitan."""

from __future__ import annotations

import argparse
import os
import sys

import click

from launch.elastic import Parser, launch, local_world_size
from launch.options import one_setting_each
from launch.progress import LiveLine
from launch.run import Arguments
from neuron_dist.forking import preload
from neuron_dist.titan.arguments import add_recipe_options
from neuron_dist.titan.problems import EXIT_RECIPE

__all__ = ["command"]

PROGRAM = ("module", "no_python", "run_path", "training_script", "training_script_args")
"""torchrun's options and arguments that say which program to run."""


@click.command("train", cls=Arguments, add_help_option=False)
@click.pass_context
def command(ctx: click.Context, args: list[str]) -> None:
    """Train a TorchTitan recipe."""
    parser = Parser(
        ctx,
        "RECIPE [-n RANKS] [--set KEY=VALUE ...] [--backend BACKEND] [--device DEVICE] [torchrun's options]",
        "Trains a TorchTitan recipe: `neuron-dist run -m neuron_dist.train`, with ranks forked from one process that "
        "has imported TorchTitan and found the recipe right. torchrun's options apply.",
        without=PROGRAM,
    )
    _add_options(parser)
    options = parser.parse(one_setting_each(args))
    live = LiveLine() if _is_on_terminal(options) else None
    status = EXIT_RECIPE
    if _prepare(options, ctx.command_path):
        preload()
        status = launch(options, ctx.command_path, live)
    if live is not None:
        live.close()
    sys.exit(status)


def _add_options(parser: Parser) -> None:
    if "PET_NPROC_PER_NODE" not in os.environ:
        parser.set_defaults(nproc_per_node=None)
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument("recipe", help="A YAML file, or the name of a recipe that ships with the package.")
    add_recipe_options(recipe)


def _is_on_terminal(options: argparse.Namespace) -> bool:
    """Whether a live line can be shown: what torch tees goes to the terminal by itself."""
    return sys.stderr.isatty() and sys.stdout.isatty() and options.tee == "0"


def _prepare(options: argparse.Namespace, name: str) -> bool:
    """Checks the recipe, which imports all that ranks need for it, and completes ``options``; false where it is wrong."""
    # pyarrow's own allocator would start a thread, which a process that forks must not have.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from torch.distributed.run import parse_min_max_nnodes

    from neuron_dist.titan import recipe as recipes
    from neuron_dist.titan.problems import RecipeError
    from neuron_dist.titan.run import prepare

    nodes = parse_min_max_nnodes(options.nnodes)[1]
    try:
        if options.nproc_per_node is None:
            ranks = recipes.load(options.recipe, options.set).own.launch.ranks or nodes
            options.nproc_per_node = str(max(1, ranks // nodes))
        else:  # the recipe's own number is for those that do not say
            options.set = [f"launch.ranks={local_world_size(options) * nodes}", *options.set]
        here = local_world_size(options)
        prepare(options.recipe, options.set, here * nodes, here, options.device, options.backend)
    except RecipeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    options.module, options.no_python, options.run_path = True, False, False
    options.training_script = "neuron_dist.train"
    options.training_script_args = [
        *("--recipe", options.recipe, "--backend", options.backend, "--device", options.device),
        *(["--set", *options.set] if options.set else []),
    ]
    return True
