"""What is wrong with a recipe, told so that it can be mended at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["EXIT_RECIPE", "MISSING", "Problem", "RecipeError", "nearest", "one_of"]


EXIT_RECIPE = 2
"""Exit status of a process whose recipe cannot run."""


class _Missing:
    """Stands for a value that is not there, since None is a value in YAML."""

    def __repr__(self) -> str:
        return "(not set)"


MISSING = _Missing()


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where it stands and what was expected."""

    where: str
    """File and line, ``--set``, or the config function whose default it is."""
    key: str
    """Dotted key path; empty when the problem is not of one key."""
    value: object
    expected: str

    def __str__(self) -> str:
        if not self.key:
            return f"{self.where}\n    {self.expected}"
        shown = repr(self.value) if self.value is MISSING else _yaml_like(self.value)
        return f"{self.where}: {self.key}: {shown}\n    {self.expected}"


class RecipeError(ValueError):
    """A recipe that cannot run; carries every problem found."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        title = "the recipe has a problem" if count == 1 else f"the recipe has {count} problems"
        super().__init__("\n".join([f"{title}:", *(str(p) for p in self.problems)]))


def nearest(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest of ``known``, or nothing when none is near."""
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[found[0]]!r}?" if found else ""


def one_of(word: object, known: Iterable[str], what: str) -> str:
    """``unknown <what>; did you mean ...? Known: a, b``, for a name that is none of ``known``."""
    names = sorted(known)
    return f"unknown {what}{nearest(word, names) or '.'} Known: {', '.join(names) or 'none'}"


def _yaml_like(value: object) -> str:
    text = (
        {None: "null", True: "true", False: "false"}.get(value)
        if isinstance(value, bool | None)
        else None
    )
    shown = text if text is not None else repr(value)
    return shown if len(shown) <= 120 else shown[:117] + "..."
