"""Options that commands share, and values as people write them: ``4M``, ``0-15,32``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from collectives.topology import Cluster, ClusterError, cluster_from_environment

__all__ = ["Bytes", "Named", "Ranks", "cluster_options", "load", "near", "one_setting_each", "table"]

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def near(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def one_setting_each(args: Iterable[str]) -> list[str]:
    """``--set A=1 B=2 recipe`` as ``--set=A=1 --set=B=2 recipe``: the recipe may follow, which is no setting."""
    ready: list[str] = []
    for word in args:
        last = ready[-1] if ready and not word.startswith("-") else ""
        if last == "--set":
            ready[-1] = f"--set={word}"
        elif last.startswith("--set=") and "=" in word:
            ready.append(f"--set={word}")
        else:
            ready.append(word)
    return ready


class Bytes(click.ParamType):
    """A size: ``8``, ``1K``, ``32MB``, ``1gb``, ``4MiB``; units are powers of 1024, as nccom-test's."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", value.strip().upper())
        size = float(match[1]) * UNITS[match[2]] if match else 0.5
        if size != int(size):
            self.fail(f"{value!r} is not a size, expected bytes like 512, 1K, 32M or 1G", param, ctx)
        return int(size)


class Ranks(click.ParamType):
    """Ranks: ``0-15``, ``0,4,8``, ``0-63:4`` (every fourth), ``0-3,8-11``; the order is kept."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: list[int] = []
        for part in value.split(","):
            match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
            if not match or match[3] == "0" or (match[2] and int(match[2]) < int(match[1])):
                self.fail(f"{part!r} is not ranks, expected like 0-15, 0,4,8 or 0-63:4", param, ctx)
            first = int(match[1])
            found += range(first, int(match[2] or first) + 1, int(match[3] or 1))
        return tuple(found)


class Named(click.ParamType):
    """One of a few names or their short forms; gives the value that stands for it."""

    def __init__(self, name: str, values: dict[str, Any]) -> None:
        self.name, self.values = name, values

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value not in self.values:
            self.fail(f"{value!r} is none of {', '.join(self.values)}{near(value, self.values)}", param, ctx)
        return self.values[value]


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--cluster`` and ``--lnc``."""
    product = click.option("--cluster", metavar="PRODUCT", help="A product or YAML file [NEURON_DIST_CLUSTER].")
    lnc = click.option("--lnc", type=int, help="Physical cores in a logical core [NEURON_LOGICAL_NC_CONFIG].")
    return product(lnc(command))


def load(product: str | None, instances: int, lnc: int | None, mapping: Sequence[int] | None = None) -> Cluster:
    """The cluster; a wrong one is an error of usage."""
    try:
        return cluster_from_environment(product, instances, lnc, list(mapping) if mapping else None)
    except ClusterError as error:
        raise click.UsageError(str(error)) from None


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], left: Iterable[int] = ()) -> str:
    """Columns of text, numbers to the right, the columns in ``left`` to the left."""
    cells = [list(map(str, header)), *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    leftward = set(left)
    lines = []
    for row in cells:
        parts = [c.ljust(w) if i in leftward else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("    ".join(parts).rstrip())
    return "\n".join(lines)
