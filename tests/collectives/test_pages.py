"""The pages on algorithms and topology are those that the code makes, and their formulas hold."""

from pathlib import Path

import pytest

from collectives.group import Group
from collectives.pages import FORMULAS, measured, pages, variables
from collectives.topology import load_cluster

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["algorithms.md", "topology.md", "images/trn2-cycles.svg"])
def test_is_current(name):
    made = pages()[name]
    assert (DOCS / name).read_text() == made, "run: python -m collectives.pages docs"


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f"{f.algorithm} {f.op}")
@pytest.mark.parametrize("product", ["trn1.32xlarge", "trn2.48xlarge", "trn2-ultraserver"])
def test_formulas(formula, product):
    cluster = load_cluster(product)
    group = Group(cluster, range(cluster.cores))
    values = variables(group) | {"max": max, "sum": sum, "range": range, "__builtins__": {}}
    C = 960
    total = C * group.size  # of an all_to_all one rank's input: a chunk of C for each other
    steps, sent, busiest, _ = measured(formula.algorithm, formula.op, group, total)
    assert steps == eval(formula.steps, values)
    assert sent == eval(formula.sent, values) * C
    assert busiest == pytest.approx(eval(formula.busiest, values) * C)
