"""The dynamo backend ``neuron``: AOTAutograd's graphs, run by the device's own operators.

So a compiled function has the bits of the eager one, its collectives are the engine's, and every operator is charged to
the simulated clock.
"""

from __future__ import annotations

import difflib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from neuron_dist.compile import metrics
from neuron_dist.fidelity.operators import tell_of_graph

__all__ = ["devices_of", "neuron", "register"]

OPTIONS = {"fallback_execution": bool, "model_name": str}


def register() -> None:
    """Adds ``neuron`` to dynamo's backends."""
    from torch._dynamo.backends.registry import register_backend

    register_backend(neuron, name="neuron")


def neuron(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of dynamo's; ``torch.compile(f, backend="neuron")`` calls it.

    ``mode`` other than ``"default"`` is told and changes nothing. ``options`` has ``model_name``, which names the graphs
    in ``torch.neuron.get_dynamo_metrics()``, and ``fallback_execution``, which has nothing to do here, since
    compilation does not fail where the eager operators run.

    Raises ValueError for an unknown option, TypeError for one of another type, RuntimeError where all tensors of the
    graph are on another device, FidelityError in strict mode for sizes that are not fixed.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    chosen = _checked(options or {})
    if mode not in (None, "default"):
        warn_of_mode(mode)
    devices = devices_of(gm, example_inputs) - {"meta"}
    if devices and "neuron" not in devices:
        raise RuntimeError(
            f"torch.compile(backend='neuron'): all tensors of the function are on {', '.join(sorted(devices))}. Move "
            "the module and its inputs with .to('neuron'), or leave backend='neuron' out."
        )
    tell_of_graph(dynamic=any(_is_symbolic(each) for each in example_inputs))
    started = time.perf_counter()
    graph_id = metrics.next_id()
    name = chosen.get("model_name", f"graph_{graph_id}")

    def run_eagerly(phase: str) -> Callable[..., Any]:
        def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            run = _boxed(graph)
            operators = [n for n in graph.graph.nodes if n.op == "call_function"]
            metrics.add(
                {
                    "graph_id": graph_id,
                    "graph_name": f"{name}.{phase}",
                    "node_count": len(operators),
                    "has_collectives": any(_is_collective(n.target) for n in operators),
                    "compile_time_s": time.perf_counter() - started,
                }
            )
            return run

        return compiler

    compile_graph = aot_autograd(
        fw_compiler=run_eagerly("forward"),
        bw_compiler=run_eagerly("backward"),
        inference_compiler=run_eagerly("inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compile_graph(gm, example_inputs)


def _boxed(graph: fx.GraphModule) -> Callable[[list[Any]], Any]:
    # Boxed: the graph may free each input after its last use.
    graph.graph.set_codegen(fx.graph._BoxedCodeGen())
    graph.recompile()
    forward = graph.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_symbolic(value: Any) -> bool:
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _is_collective(target: Any) -> bool:
    namespace = getattr(target, "namespace", "")
    return namespace in ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


def devices_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> set[str]:
    """Types of the devices that a graph's inputs, parameters and intermediate tensors are on."""
    values: list[Any] = [*example_inputs, *gm.parameters(), *gm.buffers()]
    for node in gm.graph.nodes:
        values.append(node.meta.get("example_value", node.meta.get("val")))
    return {t.device.type for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)}


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in options.items():
        if key not in OPTIONS:
            near = difflib.get_close_matches(key, OPTIONS, 1)
            raise ValueError(
                f"torch.compile(backend='neuron') has no option {key!r}; it has {', '.join(OPTIONS)}"
                + (f". Did you mean {near[0]!r}?" if near else "")
            )
        if not isinstance(value, OPTIONS[key]):
            raise TypeError(
                f"torch.compile(backend='neuron'): option {key!r} must be {OPTIONS[key].__name__}, got {value!r}"
            )
    return dict(options)


def warn_of_mode(mode: str | None) -> None:
    """TorchNeuron has one mode, and says so."""
    warnings.warn(
        f"torch.compile: the neuron backend does not support mode={mode!r}, falling back to default",
        stacklevel=3,
    )
