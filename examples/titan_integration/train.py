"""TorchTitan's own command line on device ``neuron``: its configs and flags, with what this torch and a CPU need."""

import sys
from typing import Any

from titan_imports import ConfigManager, adapted, shims, train, unsupported

from collectives.topology import cluster_from_environment

shims.after_import("neuron", "neuron", cluster_from_environment())


class AdaptedConfigManager(ConfigManager):
    """Configs as the command line gives them, on attention and an SPMD backend that run here."""

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        config = adapted(super().parse_args(*args, **kwargs))
        for key, value, expected in unsupported(config):
            sys.exit(f"not supported here: {key}: {value!r} {expected}")
        return config


if __name__ == "__main__":
    train.ConfigManager = AdaptedConfigManager  # type: ignore[misc]
    train.main()
    shims.exit_process(0)
