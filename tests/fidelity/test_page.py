"""docs/fidelity.md is the one that the rules make, and reports point into it."""

from pathlib import Path

from neuron_dist.fidelity.loading import all_rules
from neuron_dist.fidelity.page import NAME, page

PAGE = Path(__file__).parents[2] / "docs" / NAME


def test_is_current():
    assert PAGE.read_text() == page(), "run: python -m neuron_dist.fidelity.page docs"


def test_every_rule_has_the_heading_that_its_report_names():
    lines = PAGE.read_text().splitlines()
    for rule in all_rules():
        assert lines.count(f"### {rule.id}") == 1
