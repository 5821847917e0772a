"""What every command line that trains a recipe takes."""

from __future__ import annotations

import argparse

__all__ = ["add_recipe_options"]


def add_recipe_options(parser: argparse._ActionsContainer) -> None:
    """Adds ``--set KEY=VALUE ...``, ``--backend`` and ``--device`` to a parser, or a group of its arguments."""
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="sets keys of the recipe, such as training.steps=5",
    )
    parser.add_argument("--backend", default="neuron", help="c10d backend: neuron (default) or gloo")
    parser.add_argument("--device", default="neuron", help="device: neuron (default) or cpu")
