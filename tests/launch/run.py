"""Calls of the command line in this process."""

import shlex
from pathlib import Path

from click.testing import CliRunner

from launch.cli import _group

ROOT = Path(__file__).parent.parent.parent


def call(line, code=0):
    """The output of ``neuron-dist LINE``, which must end with this code."""
    result = CliRunner().invoke(_group, shlex.split(line))
    assert result.exit_code == code, result.output
    return result.output


def refused(line):
    """The error of a wrong call, on one line."""
    return " ".join(call(line, 2).split())
