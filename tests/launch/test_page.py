"""The commands of docs/tools.md run. ``python -m tests.launch.test_page`` writes their outputs into the page."""

import re

import pytest

from tests.launch.run import ROOT, call

PAGE = ROOT / "docs" / "tools.md"
BLOCK = re.compile(r"```console\n\$ neuron-dist (.*)\n(?:.*\n)*?```")
LINES = 100
"""An output that is longer is cut."""


def commands():
    return [match[1] for match in BLOCK.finditer(PAGE.read_text())]


@pytest.mark.parametrize("line", commands())
def test_runs(line):
    call(line)


def test_outputs_are_there():
    assert len(commands()) >= 6
    assert "```console\n$" in PAGE.read_text() and "simulated times" in PAGE.read_text()


def rewritten(text):
    """The page with the outputs of today."""

    def block(match):
        lines = [line.rstrip() for line in call(match[1]).rstrip().expandtabs().splitlines()]
        shown = lines if len(lines) <= LINES else [*lines[:LINES], "..."]
        return "\n".join(["```console", f"$ neuron-dist {match[1]}", *shown, "```"])

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    from launch import ls

    ls.device_processes = list  # not those of the machine that makes the page
    PAGE.write_text(rewritten(PAGE.read_text()))
