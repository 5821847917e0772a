"""What train.py imports in every rank: named to the launcher's ``--preload``, it is imported once."""

from neuron_dist.titan import shims

shims.before_import("neuron")

from torchtitan import train  # noqa: E402  after the shims
from torchtitan.config import ConfigManager  # noqa: E402

from neuron_dist.titan.support import adapted, unsupported  # noqa: E402

__all__ = ["ConfigManager", "adapted", "shims", "train", "unsupported"]
