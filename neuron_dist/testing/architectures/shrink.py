"""A default configuration of transformers, made tiny by the recipes of ``shrink.yaml``."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["needs", "recipes", "shrunk"]

LEAST = 2
TYPES = ("layer_types", "layers_block_type")
"""Fields that name the type of each layer."""


DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("shrink.yaml").read_text())


def recipes() -> Iterator[str]:
    """Names of the recipes, the smallest result first."""
    yield from DATA["recipes"]


def needs(kind: str) -> dict[str, Any]:
    """Fields that a configuration of model type ``kind`` does not choose by itself, or chooses too large."""
    tables = DATA["families"].items()
    return {k: v for name, row in tables if _matches(kind, [name]) for k, v in row.items()}


def shrunk(config: dict[str, Any], recipe: str) -> dict[str, Any]:
    """``config`` (a configuration as a dict) and all that is nested in it, smaller by ``recipe``.

    Nothing that is left draws random numbers: every kind of dropout is 0.
    """
    return _shrunk(config, DATA["recipes"][recipe])


def _shrunk(config: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    most = recipe.get("most", {})
    new: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            new[name] = _nested(name, value, recipe)
        elif name in DATA["set"]:
            new[name] = DATA["set"][name]
        elif name in DATA["keep"] or isinstance(value, bool) or value is None:
            new[name] = value
        elif any(part in name for part in DATA["zero"]):
            new[name] = _zero(value)
        elif "vocab" in name and isinstance(value, int):
            new[name] = min(value, DATA["vocabulary"])
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            new[name] = _token(name, value)
        elif name in most and _integers(value):
            small = [min(item, most[name]) for item in _integers(value)]
            new[name] = small if isinstance(value, list) else small[0]
        elif _integers(value) and not _matches(name, recipe.get("keep", [])):
            new[name] = _divided(name, value, recipe.get("divide", {}))
        else:
            new[name] = value
    return _per_layer(config, new)


def _nested(name: str, value: dict[Any, Any], recipe: dict[str, Any]) -> dict[Any, Any]:
    if not all(isinstance(key, str) for key in value):
        return value
    if name == "per_layer_config":  # its keys are the layers' indices
        layers = recipe.get("most", {}).get("num_hidden_layers")
        return {key: item for key, item in value.items() if layers is None or int(key) < layers}
    return _shrunk(value, recipe)


def _zero(value: Any) -> Any:
    if isinstance(value, list):
        return [_zero(item) for item in value]
    return type(value)(0) if isinstance(value, (int, float)) else value


def _token(name: str, value: int) -> int:
    """The id, or one in the upper part of the small vocabulary, by the name so that few are the same."""
    words = DATA["vocabulary"]
    return value if value < words else words - 1 - sum(map(ord, name)) % (words // 3)


def _integers(value: Any) -> list[int]:
    """The integers of a field, one or a list; none if it is anything else."""
    values = value if isinstance(value, list) else [value]
    return values if all(type(item) is int for item in values) else []


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _divided(name: str, value: Any, divide: dict[int, list[str]]) -> Any:
    """``value`` divided by the first number that the name has a pattern for, if that leaves integers of 2 or more."""
    by = next((by for by, patterns in divide.items() if _matches(name, patterns)), 1)
    values = _integers(value)
    if any(item % by or item // by < LEAST for item in values):
        return value
    small = [item // by for item in values]
    return small if isinstance(value, list) else small[0]


def _per_layer(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Lists with an entry for each layer follow the number of layers; the configuration makes most of them anew."""
    layers = old.get("num_hidden_layers")
    named = next((name for name in TYPES if isinstance(old.get(name), list)), None)
    if named is not None and new.get("num_hidden_layers") != layers:
        kinds = list(dict.fromkeys(old[named]))
        new[named] = (kinds * 2)[: max(2, len(kinds))]
        new["num_hidden_layers"] = len(new[named])
    if layers and new.get("num_hidden_layers") != layers:
        for name, value in old.items():
            one_each = isinstance(value, list) and len(value) == layers
            if name not in TYPES and (one_each or name in DATA["derived"]):
                new[name] = None
    return {name: value for name, value in new.items() if value is not None or old[name] is None}
