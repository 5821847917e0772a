"""The names of ``torch_neuronx``: torch.neuron's, and what TorchNeuron has at its top level besides."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from neuron_dist import device
from neuron_dist.neuronx import metadata, operators, profiling, real, streams

__all__ = ["NAMES", "UNSUPPORTED", "become"]

FROM_DEVICE = (
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_rng_state",
    "get_rng_state_all",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_peak_memory_stats",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
)
"""Names that are torch.neuron's own."""

NAMES: dict[str, Any] = {
    **{name: getattr(device, name) for name in FROM_DEVICE},
    "Event": streams.Event,
    "NeuronProfiler": profiling.NeuronProfiler,
    "Stream": streams.Stream,
    "clear_op_tracking": operators.clear_op_tracking,
    "get_executed_ops": operators.get_executed_ops,
    "get_fallback_ops": operators.get_fallback_ops,
    "is_neuron_runtime_initialized": device.is_initialized,
}
"""All names that programs find at the top of ``torch_neuronx``."""

SUBMODULES: dict[str, ModuleType] = {"neuron": device, "profiling": profiling}

UNSUPPORTED = {
    "nki_op": "NKI kernels do not run on the simulated device: call a function of torch operators in its place, "
    "or try the kernel alone with nki.simulate(kernel)(...)",
    "wrap_nki": "NKI kernels do not run on the simulated device: call a function of torch operators in its place, "
    "or try the kernel alone with nki.simulate(kernel)(...)",
    "trace": "torch_neuronx.trace is of the XLA line (2.9 and older): run the module eagerly on device 'neuron'",
    "xla_impl": "the XLA line (2.9 and older) is not simulated: use device 'neuron' in place of an XLA device",
}
"""Names of the real package that cannot work here, and what to do instead."""


def become(module: ModuleType) -> None:
    """Fills ``module``, which stands for ``torch_neuronx``.

    Raises ImportError if the real package is installed.
    """
    name = module.__name__
    if place := real.find():
        raise ImportError(
            f"{name}: neuron-dist found itself ({module.__file__}) before the real torch_neuronx ({place}) and does "
            "not stand in for it. Put the real one first on the path, or uninstall one of the two."
        )
    vars(module).update(NAMES)
    vars(module).update(SUBMODULES)
    for submodule, content in SUBMODULES.items():
        sys.modules[f"{name}.{submodule}"] = content
    module.__path__ = []  # a package whose submodules are all loaded
    module.__version__ = metadata.version()  # type: ignore[attr-defined]
    module.__all__ = sorted([*NAMES, *SUBMODULES])  # type: ignore[attr-defined]
    module.__getattr__ = _missing(name)  # type: ignore[method-assign, assignment]


def _missing(module: str) -> Callable[[str], NoReturn]:
    def __getattr__(name: str) -> NoReturn:
        if name in UNSUPPORTED:
            raise NotImplementedError(f"{module}.{name}: {UNSUPPORTED[name]}")
        near = difflib.get_close_matches(name, [*NAMES, *SUBMODULES], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(
            f"module {module!r} (neuron-dist's) has no attribute {name!r}{hint}",
            name=name,
        )

    return __getattr__
