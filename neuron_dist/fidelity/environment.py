"""Which profile the environment asks for: ``NEURON_DIST_FIDELITY`` and ``NEURON_DIST_FIDELITY_RELEASE``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from neuron_dist.fidelity.vocabulary import MODES, RELEASES, near, one_of

__all__ = [
    "MODE_VARIABLE",
    "RELEASE_VARIABLE",
    "checked_mode",
    "checked_release",
    "mode_from_environment",
    "release_for",
    "release_from_environment",
]

MODE_VARIABLE = "NEURON_DIST_FIDELITY"
RELEASE_VARIABLE = "NEURON_DIST_FIDELITY_RELEASE"


def mode_from_environment() -> str:
    """``off``, ``warn`` (unless set) or ``strict``; raises ``ValueError`` for another value."""
    return checked_mode(MODE_VARIABLE, os.environ.get(MODE_VARIABLE) or "warn")


def release_from_environment() -> str:
    """The release of TorchNeuron, by default the one for the installed torch; raises ``ValueError``."""
    value = os.environ.get(RELEASE_VARIABLE)
    return checked_release(RELEASE_VARIABLE, value) if value else release_for(torch.__version__)


def release_for(torch_version: str) -> str:
    """2.13.3 for torch 2.13, 2.14.3 for torch 2.14 and for all later ones: no later release is known."""
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    if not match:
        raise ValueError(f"torch has version {torch_version!r}, expected one like 2.13.0")
    return "2.13.3" if (int(match[1]), int(match[2])) <= (2, 13) else "2.14.3"


def checked_mode(name: str, value: str) -> str:
    """``value``; raises ``ValueError`` that names the variable, the modes and the nearest."""
    return _checked(name, value, MODES)


def checked_release(name: str, value: str) -> str:
    """``value``; raises ``ValueError`` that names the variable, the releases and the nearest."""
    return _checked(name, value, RELEASES)


def _checked(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected {one_of(known)}{near(value, known)}")
    return value
