"""The variables."""

import pytest

from neuron_dist.fidelity import rules
from neuron_dist.fidelity.environment import (
    mode_from_environment,
    release_for,
    release_from_environment,
)
from neuron_dist.fidelity.hook import fidelity_hook


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    monkeypatch.delenv("NEURON_DIST_FIDELITY", raising=False)
    monkeypatch.delenv("NEURON_DIST_FIDELITY_RELEASE", raising=False)


def test_mode(monkeypatch):
    assert mode_from_environment() == "warn"
    for mode in ("off", "warn", "strict"):
        monkeypatch.setenv("NEURON_DIST_FIDELITY", mode)
        assert mode_from_environment() == mode
    monkeypatch.setenv("NEURON_DIST_FIDELITY", "")
    assert mode_from_environment() == "warn"


@pytest.mark.parametrize(
    ("torch", "release"),
    [("2.13.0+cpu", "2.13.3"), ("2.13.1", "2.13.3"), ("2.14.0", "2.14.3"), ("2.15.0a0+git1", "2.14.3"), ("3.0", "2.14.3")],
)  # fmt: skip
def test_release_for_torch(torch, release, monkeypatch):
    assert release_for(torch) == release
    monkeypatch.setattr("torch.__version__", torch)
    assert release_from_environment() == release


def test_release(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_FIDELITY_RELEASE", "2.14.3")
    assert release_from_environment() == "2.14.3"
    assert rules() == rules("2.14.3")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        (
            "NEURON_DIST_FIDELITY",
            "stric",
            "is 'stric', expected off, warn or strict; did you mean 'strict'?",
        ),
        ("NEURON_DIST_FIDELITY", "1", "is '1', expected off, warn or strict"),
        (
            "NEURON_DIST_FIDELITY_RELEASE",
            "2.14",
            "is '2.14', expected 2.13.3 or 2.14.3; did you mean '2.14.3'?",
        ),
    ],
)
def test_wrong_values(variable, value, text, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError) as error:
        fidelity_hook(4)
    assert str(error.value) == f"{variable} {text}"


def test_a_wrong_release_is_refused_also_when_off(monkeypatch):
    monkeypatch.setenv("NEURON_DIST_FIDELITY", "off")
    monkeypatch.setenv("NEURON_DIST_FIDELITY_RELEASE", "2")
    with pytest.raises(ValueError, match=r"NEURON_DIST_FIDELITY_RELEASE is '2', expected 2\.13\.3"):
        fidelity_hook(4)


def test_an_odd_torch():
    with pytest.raises(ValueError, match="torch has version 'git', expected one like"):
        release_for("git")
