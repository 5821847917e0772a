"""nccom-test's arguments that click cannot read as they are written, and its JSON files.

``--check`` may be followed by a mode or not, ``--stats`` by any number of names; both may stand before the op.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import click

from collectives.spelling import ranges
from launch.options import near

__all__ = ["CHECKS", "NccomCommand", "read_groups"]

CHECKS = ("random", "all_ones")

STATISTIC = re.compile(r"avg|p(?:100|\d\d?)")

REFUSED = {
    "-s": "instances are simulated, -N says how many",
    "--hosts": "instances are simulated, -N says how many",
    "--hosts-file": "instances are simulated, -N says how many",
    "-S": "instances are simulated, -N says how many",
    "--slurm-mode": "instances are simulated, -N says how many",
    "--sb2sb": "buffers in SBUF are not modelled",
    "--input-shape": "buffers in SBUF are not modelled",
    "--output-shape": "buffers in SBUF are not modelled",
    "--streams-json": "one stream at a time is modelled; groups of one stream: --custom-replica-groups",
    "--coalesced-cc-size-ratio": "one tensor an operation is modelled",
    "--alltoallv-metadata": "all ranks send alike to all: leave it out",
}
"""Options of nccom-test that make no sense here, and why."""


class NccomCommand(click.Command):
    """Brings ``--check [MODE]`` and ``--stats A B ...`` into the form that click reads."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest, ready = list(args), []
        while rest:
            word = rest.pop(0)
            name = word.split("=")[0]
            if name in REFUSED:
                ctx.fail(f"{name} of nccom-test has no meaning here: {REFUSED[name]}")
            if word in ("-c", "--check"):
                mode = rest.pop(0) if rest and rest[0] in CHECKS else CHECKS[0]
                ready.append(f"--check={mode}")
            elif word in ("-t", "--stats"):
                names = []
                while rest and STATISTIC.fullmatch(rest[0]):
                    names.append(rest.pop(0))
                if not names:
                    got = f", got {rest[0]!r}" if rest else ""
                    ctx.fail(f"--stats expects avg or percentiles like p50 p99{got}")
                ready.append(f"--stats={','.join(names)}")
            else:
                ready.append(word)
        return super().parse_args(ctx, ready)


def read_groups(option: str, path: str, key: str, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The groups, or pairs, of ranks in a JSON file like ``{"replica_groups": [[[0, 1], [2, 3]]]}``.

    Raises :class:`click.UsageError` that names the option, the file and what is wrong.
    """
    where = f"{option} {path}"
    try:
        with open(path) as file:
            content: Any = json.load(file)
    except OSError as error:
        raise click.UsageError(f"{where}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise click.UsageError(f"{where}: not JSON: {error}") from None
    form = f'{{"{key}": [[[0, 1], [2, 3]]]}}'
    if not isinstance(content, dict) or key not in content:
        keys = list(content) if isinstance(content, dict) else []
        raise click.UsageError(f"{where}: no key {key!r}, expected {form}{near(key, keys)}")
    sets = content[key]
    if not isinstance(sets, list) or len(sets) != 1 or not isinstance(sets[0], list) or not sets[0]:
        raise click.UsageError(f"{where}: {key} is {sets!r}, expected one list of lists, like {form}")
    for group in sets[0]:
        if not isinstance(group, list) or not group or not all(isinstance(r, int) for r in group):
            raise click.UsageError(f"{where}: {key} holds {group!r}, expected a list of ranks")
        wrong = [r for r in group if not 0 <= r < ranks]
        if wrong:
            raise click.UsageError(f"{where}: rank {wrong[0]} in {group}, expected 0 to {ranks - 1} (-r {ranks})")
    return tuple(tuple(group) for group in sets[0])


def no_repeats(where: str, ranks: Sequence[int]) -> None:
    """Refuses a rank that occurs twice."""
    twice = sorted({r for r in ranks if ranks.count(r) > 1}) if len(set(ranks)) != len(ranks) else []
    if twice:
        raise click.UsageError(f"{where}: rank {ranges(twice)} occurs twice")
