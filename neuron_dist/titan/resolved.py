"""A config as flat rows, and what a recipe makes of the config function's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

__all__ = ["changes", "rows"]


def rows(config: Any) -> dict[str, object]:
    """Dotted key -> value of every field of a ``Trainer.Config`` that YAML can hold; the model's are left out."""
    return {
        key: value
        for f in dataclasses.fields(config)
        if f.name != "model_spec"
        for key, value in _flat(f.name, getattr(config, f.name))
    }


def changes(config: Any, original: Any) -> dict[str, tuple[object, object]]:
    """Key -> (value, value of ``original``) where the two differ; None where one of them has no such key."""
    now, before = rows(config), rows(original)
    return {
        key: (now.get(key), before.get(key))
        for key in [*now, *(k for k in before if k not in now)]
        if now.get(key) != before.get(key)
    }


def _flat(key: str, value: Any) -> Iterator[tuple[str, object]]:
    if dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            if not f.name.startswith("_"):
                yield from _flat(f"{key}.{f.name}", getattr(value, f.name))
    elif isinstance(value, list) and value and all(map(dataclasses.is_dataclass, value)):
        for index, inner in enumerate(value):
            yield from _flat(f"{key}.{index}", inner)
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    elif not callable(value):
        yield key, list(value) if isinstance(value, tuple) else value
