"""Read the rules: every key and word known, every value of the right kind, every uncertain rule with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from string import Formatter
from typing import Any

import torch
import yaml

from neuron_dist.fidelity.call import FEATURES, Value
from neuron_dist.fidelity.rule import FIELDS, Condition, Evidence, Rule
from neuron_dist.fidelity.vocabulary import (
    EFFECTS,
    FAMILIES,
    KINDS_OF_EVIDENCE,
    MAY_REFUSE,
    OP_SETS,
    OPS,
    REDUCTIONS,
    RELEASES,
    near,
    one_of,
)

__all__ = ["RuleError", "all_rules", "parse"]

FILE_KEYS = ("title", "rules")
REQUIRED = ("id", "title", "ops", "effect", "what", "instead", "evidence")
OPTIONAL = ("when", "there", "why", "families", "lnc", "releases")
TESTS = ("not", "not_multiple_of", "above")
LNC = (1, 2)

# libyaml's loader where PyYAML was built with it: every rank of a job reads the rules.
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RuleError(ValueError):
    """A file of rules that cannot be used; names the file, the rule, the key and what was expected."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """The rules that ship with the package, by file in alphabetical order."""
    folder = resources.files("neuron_dist.fidelity") / "rules"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    rules: list[Rule] = []
    for file in files:
        rules += parse(file.name, file.read_text(), known={rule.id for rule in rules})
    return tuple(rules)


def parse(where: str, text: str, known: Iterable[str] = ()) -> list[Rule]:
    """The rules in the YAML ``text`` of the file ``where``; ``known`` are ids that are taken.

    Raises :class:`RuleError`.
    """
    try:
        content = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise RuleError(f"{where}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise RuleError(
            f"{where}: holds {type(content).__name__}, expected the keys title and rules"
        )
    _keys(where, content, FILE_KEYS, FILE_KEYS)
    title = _text(where, "title", content["title"])
    if not isinstance(content["rules"], list):
        raise RuleError(f"{where}: rules is {content['rules']!r}, expected a list")
    taken = set(known)
    rules = []
    for number, entry in enumerate(content["rules"]):
        if not isinstance(entry, dict):
            raise RuleError(
                f"{where}: rules[{number}] is {entry!r}, expected the keys {', '.join(REQUIRED)}"
            )
        rule = _rule(where, number, title, entry)
        if rule.id in taken:
            raise RuleError(f"{where}: the id {rule.id!r} occurs twice")
        taken.add(rule.id)
        rules.append(rule)
    return rules


def _rule(where: str, number: int, section: str, entry: dict[str, Any]) -> Rule:
    id = entry.get("id")
    if not isinstance(id, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id):
        raise RuleError(
            f"{where}: rules[{number}].id is {id!r}, expected words like uneven-all-to-all"
        )
    where = f"{where}: rule {id}"
    _keys(where, entry, REQUIRED, (*REQUIRED, *OPTIONAL))
    effect = _word(where, "effect", entry["effect"], EFFECTS)
    why = _text(where, "why", entry["why"]) if "why" in entry else ""
    if effect == MAY_REFUSE and not why:
        raise RuleError(f"{where}: why is missing: what makes {MAY_REFUSE!r} of it")
    if effect != MAY_REFUSE and why:
        raise RuleError(
            f"{where}: why is for rules whose effect is {MAY_REFUSE!r}, this one {effect}"
        )
    return Rule(
        id=id,
        section=section,
        title=_text(where, "title", entry["title"]),
        ops=_ops(where, entry["ops"]),
        conditions=_conditions(where, entry.get("when", {})),
        effect=effect,
        what=_template(where, "what", entry["what"]),
        there=_template(where, "there", entry["there"]) if "there" in entry else "",
        instead=_template(where, "instead", entry["instead"]),
        why=why,
        evidence=_evidence(where, entry["evidence"]),
        families=_families(where, entry),
        lnc=_lnc(where, entry.get("lnc", list(LNC))),
        releases=_words(where, "releases", entry.get("releases", list(RELEASES)), RELEASES),
    )


def _ops(where: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return OP_SETS[_word(where, "ops", value, OP_SETS)]
    return _words(where, "ops", value, OPS)


def _conditions(where: str, value: Any) -> tuple[Condition, ...]:
    if not isinstance(value, dict):
        raise RuleError(f"{where}: when is {value!r}, expected features such as even, group_size")
    return tuple(_condition(where, feature, wanted) for feature, wanted in value.items())


def _condition(where: str, feature: Any, wanted: Any) -> Condition:
    key = f"when.{feature}"
    if feature not in FEATURES:
        raise RuleError(f"{where}: unknown key {key!r}{near(feature, FEATURES)}")
    if not isinstance(wanted, dict):
        return Condition(feature, among=_values(where, key, feature, wanted))
    if not wanted:
        raise RuleError(f"{where}: {key} is empty, expected {one_of(TESTS)}")
    numbers: dict[str, int | None] = {"not_multiple_of": None, "above": None}
    none_of: frozenset[Value] = frozenset()
    for test, operand in wanted.items():
        if test not in TESTS:
            raise RuleError(f"{where}: unknown key {f'{key}.{test}'!r}{near(test, TESTS)}")
        if test == "not":
            none_of = _values(where, f"{key}.not", feature, operand)
            continue
        whole = isinstance(operand, int) and not isinstance(operand, bool) and operand > 0
        if FEATURES[feature].kind is not int or not whole:
            raise RuleError(
                f"{where}: {key}.{test} is {operand!r}, expected a whole number above 0 for a feature that is one"
            )
        numbers[test] = operand
    return Condition(
        feature, None, none_of, not_multiple_of=numbers["not_multiple_of"], above=numbers["above"]
    )


def _values(where: str, key: str, feature: str, value: Any) -> frozenset[Value]:
    kind = FEATURES[feature].kind
    values: list[Any] = value if isinstance(value, list) else [value]
    for each in values:
        if type(each) is not kind:
            raise RuleError(f"{where}: {key} is {each!r}, expected {kind.__name__}")
        if feature == "reduction":
            _word(where, key, each, REDUCTIONS)
        elif feature == "dtype" and not isinstance(vars(torch).get(str(each)), torch.dtype):
            dtypes = [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)]
            raise RuleError(
                f"{where}: {key} is {each!r}, expected a dtype of torch{near(each, dtypes)}"
            )
    if not values:
        raise RuleError(f"{where}: {key} is an empty list")
    return frozenset(values)


def _evidence(where: str, value: Any) -> tuple[Evidence, ...]:
    if not isinstance(value, list) or not value:
        raise RuleError(f"{where}: evidence is {value!r}, expected a list of sure and source")
    found = []
    for number, entry in enumerate(value):
        here = f"{where}: evidence[{number}]"
        if not isinstance(entry, dict):
            raise RuleError(f"{here} is {entry!r}, expected the keys sure and source")
        _keys(here, entry, ("sure", "source"), ("sure", "source"))
        sure = _word(here, "sure", entry["sure"], KINDS_OF_EVIDENCE)
        found.append(Evidence(sure, _text(here, "source", entry["source"])))
    return tuple(found)


def _families(where: str, entry: dict[str, Any]) -> tuple[str, ...]:
    return _words(where, "families", entry["families"], FAMILIES) if "families" in entry else ()


def _lnc(where: str, value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or any(each not in LNC or isinstance(each, bool) for each in values):
        raise RuleError(f"{where}: lnc is {value!r}, expected 1 or 2, or a list of them")
    return tuple(values)


def _keys(where: str, found: dict[Any, Any], required: Iterable[str], known: Iterable[str]) -> None:
    for key in found:
        if key not in known:
            raise RuleError(f"{where}: unknown key {key!r}{near(key, known)}")
    for key in required:
        if key not in found:
            raise RuleError(f"{where}: {key} is missing")


def _words(where: str, key: str, value: Any, known: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise RuleError(f"{where}: {key} is {value!r}, expected a list of {one_of(known)}")
    return tuple(_word(where, key, each, known) for each in value)


def _word(where: str, key: str, value: Any, known: Iterable[str]) -> str:
    if value not in tuple(known):
        raise RuleError(
            f"{where}: {key} is {value!r}, expected {one_of(known)}{near(value, known)}"
        )
    return value


def _text(where: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RuleError(f"{where}: {key} is {value!r}, expected a text")
    return " ".join(value.split())


def _template(where: str, key: str, value: Any) -> str:
    text = _text(where, key, value)
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise RuleError(f"{where}: {key} is {text!r}: {error}") from None
    for name in names:
        if name not in FIELDS:
            raise RuleError(
                f"{where}: {key} names {{{name}}}, expected {one_of(FIELDS)}{near(name, FIELDS)}"
            )
    return text
