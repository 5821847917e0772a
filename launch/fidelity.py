"""``neuron-dist fidelity``: what the real TorchNeuron would refuse on a product, as the rules say it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from launch.options import cluster_options, load, near, table

if TYPE_CHECKING:
    from neuron_dist.fidelity.rule import Rule

__all__ = ["command"]


@click.command("fidelity")
@click.argument("rule", required=False)
@cluster_options
@click.option("--release", help="Release of TorchNeuron [NEURON_DIST_FIDELITY_RELEASE].")
@click.option(
    "--json", "as_json", is_flag=True, help="Print all that is known of the rules as JSON."
)
def command(
    rule: str | None, cluster: str | None, lnc: int | None, release: str | None, as_json: bool
) -> None:
    """Show what the real TorchNeuron would refuse: all rules for a product and release, or one RULE.

    A rule that "may refuse" rests on sources that disagree; NEURON_DIST_FIDELITY=strict does not raise for it.
    docs/fidelity.md explains the rules and their sources.
    """
    described = load(cluster, 1, lnc)
    # After a wrong cluster has been refused: neuron_dist brings torch, which takes longer than all the rest.
    from neuron_dist.fidelity import rules
    from neuron_dist.fidelity.environment import checked_release, release_from_environment

    try:
        chosen = checked_release("--release", release) if release else release_from_environment()
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    here = [r for r in rules(chosen) if r.applies_to(chosen, described.family, described.lnc)]
    place = f"TorchNeuron {chosen} on {described}"
    if rule is not None:
        here = [_named(rule, here, place)]
    if as_json:
        click.echo(json.dumps([_to_dict(r) for r in here], indent=4))
    elif rule is not None:
        click.echo(_details(here[0]))
    else:
        click.echo(f"{place}: {len(here)} rules")
        rows = [(r.id, r.effect, r.title, ", ".join(r.sure)) for r in here]
        click.echo(table(("rule", "effect", "what", "evidence"), rows, left=range(4)))


def _named(id: str, rules: list[Rule], place: str) -> Rule:
    for rule in rules:
        if rule.id == id:
            return rule
    ids = [rule.id for rule in rules]
    raise click.UsageError(f"no rule {id!r} for {place}, only {', '.join(ids)}{near(id, ids)}")


def _to_dict(rule: Rule) -> dict[str, Any]:
    """The rule with its conditions in words."""
    return {
        "id": rule.id,
        "section": rule.section,
        "title": rule.title,
        "ops": list(rule.ops),
        "when": [str(condition) for condition in rule.conditions],
        "effect": rule.effect,
        "what": rule.what,
        "there": rule.there,
        "instead": rule.instead,
        "why": rule.why,
        "evidence": [asdict(evidence) for evidence in rule.evidence],
        "families": list(rule.families),
        "lnc": list(rule.lnc),
        "releases": list(rule.releases),
    }


def _details(rule: Rule) -> str:
    rows = [
        ("rule", rule.id),
        ("effect", rule.effect),
        ("what", rule.title),
        ("ops", ", ".join(rule.ops)),
        *(("when", str(condition)) for condition in rule.conditions),
        ("there", rule.there),
        ("why", rule.why),
        ("instead", rule.instead),
        *((evidence.sure, evidence.source) for evidence in rule.evidence),
    ]
    return "\n".join(f"{name + ':':<14}{text}" for name, text in rows if text)
