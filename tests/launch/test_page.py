"""The commands of docs/tools.md run. ``python -m tests.launch.test_page`` writes their outputs into the page."""

import contextlib
import re
import tempfile

import pytest

from tests.launch.run import ROOT, call
from tests.simulation.training_runs import fsdp_run

PAGE = ROOT / "docs" / "tools.md"
BLOCK = re.compile(r"```console\n\$ neuron-dist (.*)\n(?:.*\n)*?```")
LINES = 100
"""An output that is longer is cut."""


def commands():
    return [match[1] for match in BLOCK.finditer(PAGE.read_text())]


@pytest.fixture(scope="module")
def run_here():
    """A folder with the trace ``run``, as the working one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fsdp_run("run", ranks=8, tp=4, hidden=4096, tokens=4096)
        yield


@pytest.mark.parametrize("line", commands())
def test_runs(line, run_here):
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
    with contextlib.contextmanager(run_here.__wrapped__)():
        PAGE.write_text(rewritten(PAGE.read_text()))
