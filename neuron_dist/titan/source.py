"""YAML as plain values plus the line on which each key stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from neuron_dist.titan.problems import Problem, RecipeError

__all__ = ["Source", "merge", "overlay", "parse_setting", "parse_value", "read"]


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, except that ``8e-4`` is a number (YAML 1.2) and ``on`` and ``no`` are words."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in rules
        if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(\d[\d_]*\.?[\d_]*[eE][-+]?\d+|\d[\d_]*\.[\d_]*|\.\d+([eE][-+]?\d+)?|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


@dataclass
class Source:
    """The values of a recipe and where each came from."""

    name: str
    """The file, as the user may open it."""
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """Dotted key path -> ``file:line`` or ``--set``."""

    def where(self, key: str, default: str | None = None) -> str:
        """The place of ``key``, or ``default``, or the place of the nearest section above it, or the file."""
        if key in self.places:
            return self.places[key]
        if default is not None:
            return default
        while "." in key:
            key = key.rpartition(".")[0]
            if key in self.places:
                return self.places[key]
        return self.name


def read(path: Path) -> Source:
    """Reads the mapping in ``path``; raises :class:`RecipeError` on bad YAML and on a key that stands twice."""
    name = _shown(path)
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError([Problem(name, "", None, f"cannot be read: {error}")]) from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RecipeError(
            [Problem(name + line, "", None, f"is not valid YAML: {error.problem}")]
        ) from None
    source = Source(name)
    if not isinstance(root, yaml.MappingNode):
        raise RecipeError(
            [
                Problem(
                    name,
                    "",
                    None,
                    "expected a mapping with module, config and TorchTitan's sections",
                )
            ]
        )
    problems: list[Problem] = []
    try:
        source.values = _plain(root, "", source, problems)
    except yaml.MarkedYAMLError as error:
        raise RecipeError(
            [Problem(name, "", None, f"is not valid YAML: {error.problem}")]
        ) from None
    if problems:
        raise RecipeError(problems)
    return source


def parse_value(text: str) -> Any:
    """One YAML value, as on the right of ``--set key=value``."""
    return yaml.load(text, Loader=_Loader)


def parse_setting(setting: str) -> tuple[str, Any]:
    """``section.key=value`` as key path and value."""
    key, equals, text = setting.partition("=")
    key = key.strip()
    if not equals or not key or any(not part for part in key.split(".")):
        raise RecipeError([Problem("--set", "", None, f"{setting!r}: expected section.key=value")])
    try:
        return key, parse_value(text)
    except yaml.YAMLError:
        raise RecipeError([Problem("--set", key, text, "is not a YAML value; quote it")]) from None


def merge(source: Source, key: str, value: Any, place: str) -> None:
    """Sets ``key`` in ``source``; a mapping is merged into what stands there, anything else replaces it."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            merge(source, f"{key}.{name}", inner, place)
        return
    *parents, last = key.split(".")
    here: Any = source.values
    for depth, parent in enumerate(parents, 1):
        index = _index(here, parent)
        child = here[index] if _has(here, index) else None
        if not isinstance(child, dict | list):
            child = {}
            source.places.setdefault(".".join(parents[:depth]), place)
            if not isinstance(here, list):
                here[index] = child
        here = child
    index = _index(here, last)
    if isinstance(here, dict) or _has(here, index):
        here[index] = value
    source.places = {k: p for k, p in source.places.items() if not k.startswith(f"{key}.")}
    source.places[key] = place


def overlay(source: Source, upper: Source) -> None:
    """Merges all values of ``upper`` into ``source``; each key keeps the place where it was written."""

    def put(key: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                put(f"{key}.{name}", inner)
            source.places.setdefault(key, upper.places[key])
            return
        merge(source, key, value, upper.places[key])
        inside = f"{key}."
        source.places |= {k: p for k, p in upper.places.items() if k.startswith(inside)}

    for name, value in upper.values.items():
        put(name, value)


def _index(here: dict[str, Any] | list[Any], part: str) -> Any:
    return int(part) if isinstance(here, list) and part.isdigit() else part


def _has(here: dict[str, Any] | list[Any], index: Any) -> bool:
    return isinstance(index, int) and index < len(here) if isinstance(here, list) else index in here


def _plain(node: yaml.Node, key: str, source: Source, problems: list[Problem]) -> Any:
    """The plain value of ``node``, noting the line of each key below it."""
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(_construct(key_node))
            path = f"{key}.{name}" if key else name
            place = f"{source.name}:{key_node.start_mark.line + 1}"
            if name in values:
                problems.append(
                    Problem(place, path, "", f"stands twice, first at {source.places[path]}")
                )
            source.places[path] = place
            values[name] = _plain(value_node, path, source, problems)
        return values
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            source.places[f"{key}.{index}"] = f"{source.name}:{item.start_mark.line + 1}"
        return [
            _plain(item, f"{key}.{index}", source, problems)
            for index, item in enumerate(node.value)
        ]
    return _construct(node)


def _construct(node: yaml.Node) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
