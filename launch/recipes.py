"""``neuron-dist recipes``: the recipes that ship with the package, or one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from launch.options import near, table

if TYPE_CHECKING:
    from neuron_dist.titan.recipe import Recipe

__all__ = ["command"]


@click.command("recipes")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the recipes that ship with the package: those whose name, model or description has NAME in it, or the one
    that is called so, with all its keys and what it inherits."""
    from neuron_dist.titan.recipe import load, recipe_names

    names = recipe_names()
    if name in names:
        click.echo(_details(load(name)))
        return
    loaded = [load(n) for n in names]
    rows = [(r.name, _model(r), _layout(r), _ranks(r), r.own.description) for r in loaded]
    if name is not None:
        rows = [row for row in rows if name.lower() in " ".join(row).lower()]
        if not rows:
            short = [n.rpartition("/")[2] for n in names]
            raise click.UsageError(f"no recipe has {name!r} in its name or description{near(name, [*names, *short])}")
    click.echo(table(("recipe", "model", "layout", "ranks", "what"), rows, left=(0, 1, 2, 4)))


def _model(recipe: Recipe) -> str:
    """Module and flavor, as far as the files tell."""
    module, config = recipe.own.module, recipe.own.config
    flavor = recipe.own.model.flavor or config.removeprefix(f"{module}_").replace("debugmodel", "debug")
    return f"{module} {flavor}"


def _layout(recipe: Recipe) -> str:
    from neuron_dist.titan.layout import DEGREES

    degrees = recipe.titan.get("parallelism", {})
    names = {**DEGREES, "expert_parallel_degree": "expert"}
    used = [(short, degrees.get(name, 1)) for name, short in names.items()]
    return " x ".join(f"{s} {n}" if n != -1 else s for s, n in used if n != 1) or "any"


def _ranks(recipe: Recipe) -> str:
    return str(recipe.own.launch.ranks or "any")


def _details(recipe: Recipe) -> str:
    """The recipe's keys with their places, and how to run it."""
    ranks = recipe.own.launch.ranks or 1
    rows = [(key, _yaml(value), recipe.source.where(key)) for key, value in _leaves(recipe.source.values)]
    run = f"torchrun --nproc-per-node {ranks} -m neuron_dist.train --recipe {recipe.name}"
    head = f"{recipe.name}: {recipe.own.description}\n\n{table(('key', 'value', 'written in'), rows, left=range(3))}\n"
    return f"{head}\nrun    {run}\ncheck  neuron-dist check {recipe.name}"


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and value of everything that is no mapping."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
