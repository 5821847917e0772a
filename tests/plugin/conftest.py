"""Runs of pytest in a process of its own, with the plugin of this tree."""

from pathlib import Path

import pytest

import launch.pytest_plugin.item  # noqa: F401  # pytester unloads what its runs in this process import, torch cannot be

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inner(pytester, monkeypatch):
    """pytester whose subprocesses import this tree."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


@pytest.fixture
def run(inner):
    return lambda *args: inner.runpytest_subprocess(*args, timeout=590)
