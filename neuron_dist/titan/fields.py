"""Sets the fields of nested dataclasses from plain values, and collects what does not fit.

Types are checked by pydantic against the field's own annotation, as strictly as JSON is: text is not a number.
A mapping changes single fields of a section, a list replaces a list, and ``param_groups: {"0": ...}`` changes one
element of it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from tyro.conf import Suppress

from neuron_dist.titan.problems import Problem, nearest, one_of
from neuron_dist.titan.source import Source

__all__ = ["Fields"]

T = TypeVar("T")


class Fields:
    """Applies values of one :class:`Source`; every misfit goes to ``problems`` and leaves its field as it was."""

    def __init__(self, source: Source, owner: str, others: Iterable[str] = ()) -> None:
        self.source = source
        self.owner = owner
        """What the keys at the top are of, for messages."""
        self.others = tuple(others)
        """Right keys at the top that are set elsewhere, for messages."""
        self.problems: list[Problem] = []

    def apply(self, config: T, values: Mapping[str, Any], key: str = "") -> T:
        """A copy of the dataclass ``config`` with ``values`` set; ``key`` is its own key path."""
        hints = _hints(type(config))
        changes: dict[str, Any] = {}
        for name, value in values.items():
            path = f"{key}.{name}" if key else name
            if name not in hints:
                known = hints if key else [*hints, *self.others]
                self._refuse(path, value, one_of(name, known, f"key in {key or self.owner}"))
                continue
            changes[name] = self._convert(hints[name], getattr(config, name), value, path)
        return self._replace(config, changes, key, values)

    def _replace(self, config: T, changes: dict[str, Any], key: str, values: object) -> T:
        """A copy with ``changes``; what the dataclass itself refuses becomes a problem of the key it names."""
        try:
            return dataclasses.replace(config, **changes)  # type: ignore[type-var]
        except (ValueError, AssertionError) as error:
            text = " ".join(str(error).split())
            above = f"{key}." if key else ""
            below = [k.removeprefix(above) for k in self.source.places if k.startswith(above)]
            named = max((name for name in below if name in text), key=len, default="")
            value: Any = values
            for part in filter(None, named.split(".")):
                value = value[part] if isinstance(value, Mapping) else value
            self._refuse(f"{above}{named}" if named else key, value, text)
            return config

    def _convert(self, hint: Any, current: Any, value: Any, key: str) -> Any:
        hint, metadata = _unwrap(hint)
        if Suppress in metadata or _code(hint):
            self._refuse(
                key, value, "is chosen by module and config, and cannot be set by a recipe"
            )
            return current
        variants = _variants(hint)
        if variants:
            return self._convert_variant(variants, current, value, key)
        element = _dataclass_element(hint)
        if element is not None:
            return self._convert_list(element, current, value, key)
        if dataclasses.is_dataclass(current):
            if isinstance(value, Mapping):
                return self.apply(current, value, key)
            self._refuse(
                key, value, f"expected a section with some of {', '.join(_hints(type(current)))}"
            )
            return current
        if isinstance(current, dict) and isinstance(value, Mapping):
            value = {**current, **value}
        return self._check(hint, current, value, key)

    def _convert_variant(self, variants: dict[str, Any], current: Any, value: Any, key: str) -> Any:
        """A union of named sections: its name, ``{name: {fields}}``, or fields of the one that stands."""
        name: Any = value
        inner: Mapping[str, Any] = {}
        if isinstance(value, Mapping):
            if len(value) == 1 and next(iter(value)) in variants:
                name, inner = next(iter(value.items()))
                inner = inner or {}
            elif dataclasses.is_dataclass(current):
                return self.apply(current, value, key)
        if value is None and "none" in variants:
            name = "none"
        if name not in variants:
            self._refuse(
                key,
                value,
                f"{one_of(name, variants, 'choice')}, each alone or as {{name: {{key: value}}}}",
            )
            return current
        cls = variants[name]
        if cls is type(None):
            return None
        return self.apply(
            current if type(current) is cls else cls(), inner, f"{key}.{name}" if inner else key
        )

    def _convert_list(self, element: type, current: Any, value: Any, key: str) -> Any:
        items = list(current or [])
        if isinstance(value, Mapping) and all(str(k).isdigit() for k in value):
            for index, inner in value.items():
                if int(index) >= len(items):
                    self._refuse(f"{key}.{index}", inner, f"expected an index below {len(items)}")
                elif isinstance(inner, Mapping):
                    items[int(index)] = self.apply(items[int(index)], inner, f"{key}.{index}")
                else:
                    self._refuse(
                        f"{key}.{index}",
                        inner,
                        f"expected a section with some of {', '.join(_hints(element))}",
                    )
            return items
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            self._refuse(
                key, value, f"expected a list of sections, each with {', '.join(_hints(element))}"
            )
            return current
        built = [self.build(element, inner, f"{key}.{i}") for i, inner in enumerate(value)]
        return current if None in built else built

    def build(self, cls: type, values: Mapping[str, Any], key: str) -> Any:
        """A new ``cls`` from ``values``, or None; a field without default must be there."""
        needed = {
            f.name
            for f in dataclasses.fields(cls)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        hints = _hints(cls)
        for name in sorted(needed - set(values)):
            self._refuse(f"{key}.{name}", None, "is needed here")
        kwargs = {}
        for name, value in values.items():
            if name not in hints:
                self._refuse(f"{key}.{name}", value, one_of(name, hints, f"key in {key}"))
            else:
                kwargs[name] = self._convert(hints[name], None, value, f"{key}.{name}")
        if needed - set(kwargs):
            return None
        try:
            return cls(**kwargs)
        except (ValueError, AssertionError) as error:
            self._refuse(key, dict(values), " ".join(str(error).split()))
            return None

    def _check(self, hint: Any, current: Any, value: Any, key: str) -> Any:
        try:
            return _adapter(hint).validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError:
            guess = (
                nearest(value, [str(c) for c in _choices(hint)]) if isinstance(value, str) else ""
            )
            self._refuse(key, value, f"expected {_describe(hint)}{guess}")
            return current

    def _refuse(self, key: str, value: object, expected: str) -> None:
        self.problems.append(Problem(self.source.where(key), key, value, expected))


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):
        return TypeAdapter(Any)


def _hints(cls: type) -> dict[str, Any]:
    """The fields of ``cls`` that a constructor takes, with their annotations."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError:
        hints = {}
    return {
        f.name: hints.get(f.name, f.type)
        for f in dataclasses.fields(cls)
        if f.init and not f.name.startswith("_")
    }


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        return inner, tuple(metadata)
    return hint, ()


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()


def _variants(hint: Any) -> dict[str, Any]:
    """Name -> class of a union whose members TorchTitan names as subcommands."""
    found = {}
    for member in _members(hint):
        cls, metadata = _unwrap(member)
        name = next((m.name for m in metadata if isinstance(getattr(m, "name", None), str)), None)
        if name is not None:
            found[name] = cls
    return found


def _dataclass_element(hint: Any) -> type | None:
    """The element class of a list of dataclasses."""
    if get_origin(hint) is list:
        (element,) = get_args(hint)
        if isinstance(element, type) and dataclasses.is_dataclass(element):
            return element
    return None


def _code(hint: Any) -> bool:
    """Whether values of this type are code, which YAML cannot hold."""
    return (
        hint is Callable
        or get_origin(hint) is Callable
        or hint is typing.Callable
        or get_origin(hint) is type
    )


def _choices(hint: Any) -> tuple[Any, ...]:
    hint, _ = _unwrap(hint)
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(c for member in _members(hint) for c in _choices(member))


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _describe(hint: Any) -> str:
    hint, _ = _unwrap(hint)
    if hint in _WORDS:
        return _WORDS[hint]
    if _members(hint):
        parts = list(dict.fromkeys(_describe(m) for m in _members(hint)))
        if "a number" in parts and "a whole number" in parts:
            parts.remove("a whole number")
        return " or ".join(parts)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(c) for c in get_args(hint))
    if get_origin(hint) is list:
        return f"a list, each {_describe(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return "a mapping"
    return getattr(hint, "__name__", str(hint))
