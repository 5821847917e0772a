"""Environment variables of TorchNeuron: ``variables.yaml`` says which mean something here, and this says it to users."""

from __future__ import annotations

import difflib
import functools
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Variable", "messages", "report", "table"]

_PREFIXES = ("NEURON_", "TORCH_NEURONX_", "COLLECTIVE_")
_NEAR = 0.85
"""How alike (difflib's ratio) an unknown name must be to be taken for a slip: real ones that we do not know differ more."""


@dataclass(frozen=True)
class Variable:
    """A row of the table."""

    name: str
    honoured: bool
    says: str
    """What the device does with it, or why it changes nothing."""
    silent: tuple[str, ...] = ()
    """Values of an ignored variable that ask for what is the case anyway."""
    values: tuple[str, ...] = ()
    """The only values that it may have; empty: any."""


@functools.cache
def table() -> Mapping[str, Variable]:
    """All known variables by name."""
    import yaml  # not at import

    rows = yaml.safe_load(Path(__file__).with_name("variables.yaml").read_text())
    known = {}
    for name, row in rows["honoured"].items():
        known[name] = Variable(name, True, row["here"], values=tuple(row.get("values", ())))
    for name, row in rows["ignored"].items():
        known[name] = Variable(name, False, row["without"], tuple(row.get("silent", ())))
    return known


def messages(environment: Mapping[str, str]) -> Iterator[str]:
    """One line for each variable that is set and changes nothing, or looks like a slip.

    Raises ValueError for a value that the device cannot honour.
    """
    set_ones = sorted(name for name in environment if name.startswith(_PREFIXES))
    if not set_ones:
        return
    known = table()
    for name in set_ones:
        value = environment[name]
        if variable := known.get(name):
            if variable.values and value not in variable.values:
                raise ValueError(f"{name} is {value!r}, expected {' or '.join(variable.values)}")
            if not variable.honoured and value not in variable.silent:
                yield f"{name}={value} changes nothing on the simulated device: {variable.says}"
        elif near := difflib.get_close_matches(name, known, 1, _NEAR):
            yield f"{name} is not a variable that neuron-dist knows; did you mean {near[0]}?"


def report() -> None:
    """Warns of this process's variables; of several ranks, the first one of each host does."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    for line in messages(os.environ):
        if first:
            warnings.warn(line, stacklevel=2)
