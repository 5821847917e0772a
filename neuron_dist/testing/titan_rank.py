"""What a rank of :mod:`neuron_dist.testing.titan_cases` does; TorchTitan is imported when it does it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from neuron_dist.titan.problems import RecipeError
from neuron_dist.titan.run import prepare, train, world

__all__ = ["refusal", "train_rank"]


def train_rank(
    recipe: str, settings: Sequence[str], device: str, backend: str, folder: str
) -> dict[int, float]:
    """Trains, with ``folder`` as the working directory; the losses of the steps, the same on every rank."""
    os.chdir(folder)
    return train(prepare(recipe, settings, *world(), device, backend)).losses


def refusal(recipe: str, settings: Sequence[str], device: str, backend: str) -> str:
    """What the check says against the recipe; nothing where it would run."""
    try:
        prepare(recipe, settings, *world(), device, backend)
    except RecipeError as error:
        return str(error)
    return ""
