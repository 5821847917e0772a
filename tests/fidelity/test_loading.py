"""What a file of rules must be, and how it is refused."""

import re
from collections import Counter
from itertools import pairwise

import pytest
import yaml

from neuron_dist.fidelity.loading import RuleError, all_rules, parse

RULE = {
    "id": "odd",
    "title": "odd groups",
    "ops": ["all_reduce"],
    "when": {"group_size": {"not": [1, 2], "not_multiple_of": 4}},
    "effect": "refuses",
    "what": "{op} of {group_size}",
    "instead": "use even groups",
    "evidence": [{"sure": "documented", "source": "here"}],
}


def text(rule=RULE, **changes):
    return yaml.safe_dump({"title": "Groups", "rules": [{**rule, **changes}]})


def without(key):
    return text({k: v for k, v in RULE.items() if k != key})


def test_a_good_rule():
    (rule,) = parse("x.yaml", text(families=["trn1"], lnc=1, releases=["2.14.3"], there="no"))
    assert (rule.section, rule.id, rule.ops, rule.families, rule.lnc) == (
        "Groups",
        "odd",
        ("all_reduce",),
        ("trn1",),
        (1,),
    )
    assert str(rule.conditions[0]) == "group_size not 1 or 2 and not a multiple of 4"
    assert rule.applies_to("2.14.3", "trn1", 1)
    assert not rule.applies_to("2.13.3", "trn1", 1)
    assert not rule.applies_to("2.14.3", "trn2", 1)
    assert not rule.applies_to("2.14.3", "trn1", 2)
    (rule,) = parse("x.yaml", text(ops="collectives"))
    assert "barrier" in rule.ops and "send" not in rule.ops
    assert rule.applies_to("2.13.3", "a family of one's own", 2)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[", "x.yaml: not YAML: "),
        ("- a", "x.yaml: holds list, expected the keys title and rules"),
        ("title: a", "x.yaml: rules is missing"),
        ("titel: a\nrules: []", "x.yaml: unknown key 'titel'; did you mean 'title'?"),
        ("title: a\nrules: 3", "x.yaml: rules is 3, expected a list"),
        ("title: a\nrules: [3]", "x.yaml: rules[0] is 3, expected the keys id, title"),
        (text(id="Odd Group"), "x.yaml: rules[0].id is 'Odd Group', expected words like"),
        (without("id"), "x.yaml: rules[0].id is None"),
        (without("effect"), "x.yaml: rule odd: effect is missing"),
        (text(efect="x"), "x.yaml: rule odd: unknown key 'efect'; did you mean 'effect'?"),
        (text(effect="refuse"), "rule odd: effect is 'refuse', expected refuses, may refuse, narrows or falls back on; did you mean 'refuses'?"),
        (text(effect=["refuses"]), "effect is ['refuses'], expected refuses, may refuse, narrows or falls back on"),
        (text(effect="may refuse"), "rule odd: why is missing: what makes 'may refuse' of it"),
        (text(why="x"), "rule odd: why is for rules whose effect is 'may refuse'"),
        (text(title=" "), "rule odd: title is ' ', expected a text"),
        (text(ops=["allreduce"]), "rule odd: ops is 'allreduce', expected all_reduce, "),
        (text(ops=["allreduce"]), "did you mean 'all_reduce'?"),
        (text(ops=[]), "rule odd: ops is [], expected a list of all_reduce"),
        (text(ops="colectives"), "ops is 'colectives', expected collectives or tensor ops; did you mean 'collectives'?"),
        (text(when=3), "rule odd: when is 3, expected features"),
        (text(when={"groupsize": 3}), "unknown key 'when.groupsize'; did you mean 'group_size'?"),
        (text(when={"group_size": {}}), "when.group_size is empty, expected not, not_multiple_of or above"),
        (text(when={"group_size": {"multiple_of": 4}}), "unknown key 'when.group_size.multiple_of'; did you mean 'not_multiple_of'?"),
        (text(when={"group_size": {"above": "4"}}), "when.group_size.above is '4', expected a whole number above 0"),
        (text(when={"group_size": {"not_multiple_of": 0}}), "when.group_size.not_multiple_of is 0, expected a whole number above 0"),
        (text(when={"dtype": {"above": 4}}), "when.dtype.above is 4, expected a whole number above 0 for a feature that is one"),
        (text(when={"group_size": True}), "when.group_size is True, expected int"),
        (text(when={"even": 0}), "when.even is 0, expected bool"),
        (text(when={"even": []}), "when.even is an empty list"),
        (text(when={"reduction": "SUMM"}), "when.reduction is 'SUMM', expected SUM, AVG"),
        (text(when={"dtype": ["float23"]}), "when.dtype is 'float23', expected a dtype of torch; did you mean 'float32'?"),
        (text(what="{oq}"), "what names {oq}, expected op, operator, reduction, dtype, group_size, world_size, first_rank or ranks; did you mean 'op'?"),
        (text(what="{op.__class__}"), "what names {op.__class__}"),
        (text(what="{op"), "what is '{op': expected '}' before end of string"),
        (text(evidence=[]), "evidence is [], expected a list of sure and source"),
        (text(evidence=["x"]), "evidence[0] is 'x', expected the keys sure and source"),
        (text(evidence=[{"sure": "documented"}]), "evidence[0]: source is missing"),
        (text(evidence=[{"sure": "rumour", "source": "x"}]), "evidence[0]: sure is 'rumour', expected documented, pre-release or field report"),
        (text(families=["trn4"]), "families is 'trn4', expected trn1, trn1n, trn2, trn2u or trn3; did you mean 'trn"),
        (text(lnc=3), "lnc is 3, expected 1 or 2"),
        (text(lnc=[True]), "lnc is [True], expected 1 or 2"),
        (text(releases=["2.13"]), "releases is '2.13', expected 2.13.3 or 2.14.3; did you mean '2.13.3'?"),
    ],
)  # fmt: skip
def test_errors(content, error):
    with pytest.raises(RuleError, match=re.escape(error)):
        parse("x.yaml", content)


def test_ids_are_unique():
    twice = yaml.safe_dump({"title": "Groups", "rules": [RULE, RULE]})
    with pytest.raises(RuleError, match=r"x\.yaml: the id 'odd' occurs twice"):
        parse("x.yaml", twice)
    with pytest.raises(RuleError, match="the id 'odd' occurs twice"):
        parse("x.yaml", text(), known={"odd"})
    assert set(Counter(rule.id for rule in all_rules()).values()) == {1}


def test_sections_are_whole():
    sections = [rule.section for rule in all_rules()]
    changes = sum(a != b for a, b in pairwise(sections))
    assert changes == len(set(sections)) - 1
