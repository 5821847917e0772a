"""``torch.compile`` without a backend means inductor, which has no code for the device: neuron takes its own graphs.

AWS documents the same choice for TorchNeuron. Graphs of other devices go to inductor as ever.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from neuron_dist.compile.backend import devices_of, neuron

__all__ = ["hand_over"]


def hand_over() -> None:
    """Lets inductor's entry give graphs with neuron tensors to the backend ``neuron``."""
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx

    @functools.wraps(original)
    def choose(model: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(model, "graph") or "neuron" not in devices_of(model, example_inputs):
            return original(model, example_inputs, *args, **kwargs)
        from torch._inductor.virtualized import V

        if V.aot_compilation:
            raise NotImplementedError(
                "AOTInductor makes no code for device neuron. Save the program with torch.export.save, and run it with "
                "torch.export.load(...).module(), or compile it with torch.compile(backend='neuron')."
            )
        if kwargs.get("config_patches"):
            warnings.warn(
                "torch.compile: the neuron backend does not have inductor's modes and options, and leaves out "
                + ", ".join(sorted(kwargs["config_patches"])),
                stacklevel=2,
            )
        return neuron(model, example_inputs)

    compile_fx.compile_fx = choose  # type: ignore[assignment]
