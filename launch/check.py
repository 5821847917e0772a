"""``neuron-dist check``: is a recipe right, does it fit, and what would the real TorchNeuron say?"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from collectives.spelling import ranges
from launch.options import one_setting_each, table

if TYPE_CHECKING:
    from neuron_dist.titan.check import Plan
    from neuron_dist.titan.sizing.memory import Need

__all__ = ["command"]

DOES_NOT_FIT = 1
"""Exit status of a recipe that is right and needs more HBM than there is."""


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, one_setting_each(args))


@click.command("check", cls=_Command)
@click.argument("recipe")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE ...", help="Set keys of the recipe.")
@click.option("-n", "ranks", type=click.IntRange(1), help="Ranks, instead of the recipe's launch.ranks.")
@click.option("--device", default="neuron", show_default=True, help="neuron or cpu.")
@click.option("--backend", default="neuron", show_default=True, help="neuron or gloo.")
@click.option("--all", "everything", is_flag=True, help="Print all fields, not only those that the recipe changes.")
@click.option(
    "--attention",
    type=click.Choice(("fused", "dense")),
    default="fused",
    show_default=True,
    help="Memory of attention as a kernel of the hardware, or as a run here computes it.",
)
@click.option("--no-memory", is_flag=True, help="Leave the memory out.")
def command(
    recipe: str,
    settings: Sequence[str],
    ranks: int | None,
    device: str,
    backend: str,
    everything: bool,
    attention: str,
    no_memory: bool,
) -> None:
    """Validate RECIPE (a YAML file or a shipped recipe's name) and print what it comes to, without running it: the
    resolved config, the mesh, the memory that each rank needs against the HBM of its logical core, and what the real
    TorchNeuron would refuse.

    Ends with 0, with 1 if the recipe does not fit into HBM, and with 2 if it is wrong.
    """
    os.environ["NEURON_DIST_SIMULATION"] = "off"  # nothing runs that could take time
    from neuron_dist.titan.check import check
    from neuron_dist.titan.problems import EXIT_RECIPE, RecipeError

    settings = [*([f"launch.ranks={ranks}"] if ranks else []), *settings]
    fits = True
    try:
        plan = check(recipe, settings, device=device, backend=backend)
        click.echo(_head(plan))
        click.echo(f"\n{_config(plan, everything)}")
        click.echo(f"\n{_mesh(plan)}")
        if not no_memory:
            text, fits = _memory(plan, attention)
            click.echo(f"\n{text}")
    except RecipeError as error:
        click.echo(f"neuron-dist check: {error}", err=True)
        sys.exit(EXIT_RECIPE)
    click.echo(f"\n{_fidelity(plan)}")
    sys.exit(0 if fits else DOES_NOT_FIT)


def _head(plan: Plan) -> str:
    spec, own = plan.config.model_spec, plan.recipe.own
    rows = [
        ("recipe", plan.recipe.name + (f": {own.description}" if own.description else "")),
        ("model", f"{spec.name} {spec.flavor}, {len(spec.model.layers)} layers"),
        ("layout", f"{plan.layout.ranks} ranks: {plan.layout}"),
        ("cluster", str(plan.cluster)),
    ]
    return "\n".join(f"{name:<9}{text}" for name, text in rows)


def _config(plan: Plan, everything: bool) -> str:
    from neuron_dist.titan.check import original_config
    from neuron_dist.titan.resolved import changes, rows

    if everything:
        return "Config\n" + "\n".join(f"  {key} = {_shown(v)}" for key, v in rows(plan.config).items())
    changed = changes(plan.config, original_config(plan.recipe))
    shown = [(key, _shown(now), _shown(before)) for key, (now, before) in changed.items()]
    return f"Config, where it is not {plan.recipe.own.config}'s own\n" + table(
        ("key", "value", "instead of"), shown, left=range(3)
    )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _mesh(plan: Plan) -> str:
    from neuron_dist.titan.mesh import axes

    rows = []
    for axis in axes(plan):
        first = axis.groups[0]
        chips = {plan.cluster.core_of(r) // plan.cluster.logical_cores_per_chip for r in first}
        instances = {plan.cluster.core_of(r) // plan.cluster.cores_per_instance for r in first}
        runs = ", ".join(dict.fromkeys(op for op, _, _ in axis.traffic))
        rows.append((axis.name, axis.size, len(axis.groups), ranges(first), len(chips), len(instances), runs))
    if not rows:
        return "Mesh: one rank"
    head = ("axis", "size", "groups", "ranks of the first", "chips", "instances", "runs")
    return "Mesh\n" + table(head, rows, left=(0, 3, 6))


def _memory(plan: Plan, attention: str) -> tuple[str, bool]:
    from neuron_dist.simulation.units import memory
    from neuron_dist.titan.sizing.advice import advice
    from neuron_dist.titan.sizing.memory import needs
    from neuron_dist.titan.sizing.trace import ATTENTION

    hbm = plan.cluster.hbm_bytes_per_core
    found = needs(plan, attention)
    rows: list[Sequence[Any]] = [
        (
            need.pipeline_rank,
            f"{need.ranks[0]}-{need.ranks[-1]}" if len(need.ranks) > 1 else need.ranks[0],
            need.layers,
            need.micro_batches,
            *(memory(n) for n in (need.parameters, need.gradients, need.optimizer, need.activations, need.peak)),
            f"{100 * need.peak / hbm:.0f} %",
        )
        for need in found
    ]
    head = ("stage", "ranks", "layers", "micro-batches", "parameters", "gradients", "optimizer", "activations", "peak", "of HBM")  # fmt: skip
    worst: Need = max(found, key=lambda need: need.peak)
    fits = worst.peak <= hbm
    lines = [
        f"Memory of a rank, against {memory(hbm)} of HBM a logical core",
        table(head, rows),
        "parameters, gradients, optimizer: exact, this rank's shards. activations, peak: estimates, eager execution;",
        f"attention {ATTENTION[attention]}.",
    ]
    if not fits:
        lines.append(f"does not fit: {memory(worst.peak - hbm)} too much on ranks {worst.ranks[0]}-{worst.ranks[-1]}")
        lines += [f"  {text}" for text in advice(plan, found)]
    return "\n".join(lines), fits


def _fidelity(plan: Plan) -> str:
    from neuron_dist.fidelity.environment import release_from_environment
    from neuron_dist.fidelity.profile import Profile
    from neuron_dist.titan.mesh import refused

    profile = Profile("warn", release_from_environment(), plan.cluster)
    found = refused(plan, profile)
    title = f"TorchNeuron {profile.release} on {plan.cluster.product}"
    if not found:
        return f"{title}: nothing of the layout is refused"
    rows = [f"  {names} ({rule.id}): {text}" for names, rule, text in found]
    return f"{title}, of what the layout shows:\n" + "\n".join(rows)
