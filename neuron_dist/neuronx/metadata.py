"""Answers ``importlib.metadata.version("torch-neuronx")``: diffusers and others take a package without one for absent."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from typing import Any

__all__ = ["VERSION_OF_TORCH", "install", "version"]

VERSION_OF_TORCH = {"2.13": "2.13.3.0", "2.14": "2.14.3.0"}
"""The release of torch-neuronx for each torch, by AWS's release notes of 2.33."""


def version() -> str:
    """The release whose spellings this device has, marked as simulated: ``2.13.3.0+neuron.dist``.

    The one for the installed torch; the newest one known where torch is newer.
    """
    # Not torch.__version__: this is asked while torch may still be half imported.
    from torch.version import __version__ as torch_version

    known = VERSION_OF_TORCH.get(".".join(torch_version.split(".")[:2]))
    return (known or list(VERSION_OF_TORCH.values())[-1]) + "+neuron.dist"


class _TorchNeuronx(Distribution):
    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return (
            "Metadata-Version: 2.1\nName: torch-neuronx\n"
            f"Version: {version()}\nSummary: neuron-dist in place of torch-neuronx\n"
        )

    def locate_file(self, path: str | PathLike[str]) -> Any:
        raise FileNotFoundError(
            f"{path}: torch-neuronx is not installed; neuron-dist stands for it"
        )


class _Finder(DistributionFinder):
    """Finds no module, and one distribution if it is asked for by name: listings do not show it."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        name = context.name if context is not None else None  # None: all that there are
        if (name or "").lower().replace("_", "-") == "torch-neuronx":
            yield _TorchNeuronx()


def install() -> None:
    """Makes the version known, after everything that is really installed. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
