"""The modules of torch's database (``module_db``) on a device and the CPU.

A module is built on the CPU from a fixed seed and moved, so that both have the same weights.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from neuron_dist.testing.op_checks import Check, compare
from neuron_dist.testing.op_mirror import Mirror, tensors_in

__all__ = ["MEANING", "all_modules", "check", "samples"]

MEANING = {
    "forward": "the module's results, and its buffers afterwards",
    "backward": "gradients of inputs and parameters",
    "gradgrad": "gradients of those",
    "noncontiguous": "forward and backward of inputs that are not contiguous",
    "channels_last": "the same in channels_last (2d, 3d), module and inputs: values and strides",
    "move": "to the device, back, and there again in another dtype: parameters stay the same objects, tied and frozen as "
    "they were",
    "pickle": "through pickle, deepcopy and `torch.save` with `weights_only`",
    "factory": "built on the device: parameters and buffers as on the CPU, but for their random values",
    "errors": "inputs that the database says must raise",
}

def all_modules() -> dict[str, Any]:
    """The modules of the database by their formatted names."""
    from torch.testing._internal.common_modules import module_db

    return {info.formatted_name: info for info in module_db}


def samples(info: Any, dtype: torch.dtype, training: bool) -> list[Any]:
    """What the database builds and calls the module with, made on the CPU with a fixed seed."""
    torch.manual_seed(0)
    return list(
        info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
    )


def errors(info: Any, dtype: torch.dtype, training: bool) -> list[Any]:
    """Those that must raise."""
    if info.module_error_inputs_func is None:
        return []
    torch.manual_seed(0)
    made = info.module_error_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    return [e.module_error_input for e in made]


def _build(
    info: Any, sample: Any, dtype: torch.dtype, training: bool, device: str | None = None
) -> nn.Module:
    """The module, on the CPU or made on ``device``."""
    made = sample.constructor_input
    args, kwargs = copy.deepcopy((made.args, made.kwargs))
    if device is not None:
        args, kwargs = tree_map(
            lambda leaf: leaf.to(device) if isinstance(leaf, (Tensor, nn.Module)) else leaf,
            (args, kwargs),
        )
    parameters = inspect.signature(info.module_cls.__init__).parameters.values()
    names = {p.name for p in parameters}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)  # nn.RNN hands them on
    if "dtype" in names or anything:
        kwargs.setdefault("dtype", dtype)
    if device is not None and ("device" in names or anything):
        kwargs["device"] = device
    torch.manual_seed(7)
    module: nn.Module = info.module_cls(*args, **kwargs)
    return module.to(dtype).train(training)


def _cotangent(t: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(t.shape, dtype=torch.float64, generator=generator)
    return values.to(t.dtype).to(t.device)


def _gradients(
    outs: Any, leaves: list[Tensor], seed: int, create_graph: bool = False
) -> list[Tensor]:
    roots = [t for t in tensors_in(outs) if t.requires_grad]
    if not roots or not leaves:
        return []
    grads = torch.autograd.grad(
        roots,
        leaves,
        [_cotangent(t, seed) for t in roots],
        create_graph=create_graph,
        allow_unused=True,
    )
    return [g for g in grads if g is not None]


def _leaves(module: nn.Module, args: Any) -> list[Tensor]:
    wanted = [*tensors_in(args), *module.parameters()]
    return [t for t in wanted if t.requires_grad and t.is_leaf]


def _call(module: nn.Module, args: Any) -> Any:
    return module(*args[0], **args[1])


def _forward(module: nn.Module, args: Any) -> Any:
    return [_call(module, args), dict(module.named_buffers())]


def _backward(module: nn.Module, args: Any) -> Any:
    out = _call(module, args)
    return [out, *_gradients(out, _leaves(module, args), 1), dict(module.named_buffers())]


def _gradgrad(module: nn.Module, args: Any) -> Any:
    out = _call(module, args)
    leaves = _leaves(module, args)
    return _gradients(_gradients(out, leaves, 1, create_graph=True), leaves, 2)


def _pickled(module: nn.Module, args: Any) -> Any:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    copies = [pickle.loads(pickle.dumps(module)), copy.deepcopy(module), copy.deepcopy(module)]
    for parameter in copies[2].parameters():
        nn.init.zeros_(parameter)
    copies[2].load_state_dict(torch.load(file, weights_only=True))
    out = []
    for other in copies:
        torch.manual_seed(3)
        out.append([_call(other, args), other.state_dict(), str(other)])
    return out


def _strided(memory_format: torch.memory_format) -> Callable[[Any], Any]:
    dims = {torch.channels_last: 4, torch.channels_last_3d: 5}[memory_format]

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() != dims:
            return leaf
        made = leaf.detach().contiguous(memory_format=memory_format)
        return made.requires_grad_(leaf.requires_grad)

    return convert


def _noncontiguous(leaf: Any) -> Any:
    from torch.testing._internal.common_utils import noncontiguous_like

    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
        return leaf
    return noncontiguous_like(leaf)


def _channels_last(module: nn.Module, args: Any) -> Any:
    out = []
    for memory_format in (torch.channels_last, torch.channels_last_3d):
        there = tree_map(_strided(memory_format), args)
        if all(a is b for a, b in zip(tensors_in(args), tensors_in(there), strict=True)):
            continue
        module = module.to(memory_format=memory_format)  # type: ignore[call-overload]
        out.append(_backward(module, there))
    return out


def _moved(module: nn.Module, args: Any, device: str) -> Any:
    def state() -> list[Any]:
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        order = {id(t): i for i, (_, t) in reversed(list(enumerate(named)))}
        return [(name, order[id(t)], t.requires_grad, t.dtype) for name, t in named]

    before = [id(p) for p in module.parameters()]
    there = state()
    module.to("cpu")
    home = [state(), all(t.device.type == "cpu" for t in module.state_dict().values())]
    module.to(device, torch.float64)
    wide = [state(), dict(module.named_parameters()), dict(module.named_buffers())]
    kept = [id(p) for p in module.parameters()] == before
    return [there, home, wide, kept]


RUNS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "forward": _forward,
    "backward": _backward,
    "gradgrad": _gradgrad,
    "noncontiguous": _backward,
    "channels_last": _channels_last,
    "pickle": _pickled,
    "errors": _forward,
}


def check(
    info: Any, variant: str, sample: Any, dtype: torch.dtype, training: bool, device: str = "neuron"
) -> Check:
    """One check of one sample."""
    given = (
        (sample.forward_input.args, sample.forward_input.kwargs)
        if sample.forward_input
        else ((), {})
    )
    if variant == "noncontiguous":
        given = tree_map(_noncontiguous, given)

    def run(where: str, seed: int) -> tuple[Any, Any]:
        args = Mirror(where)(given)
        module = _build(info, sample, dtype, training, where if variant == "factory" else None)
        if info.is_lazy:  # its parameters are made, and drawn, by the first call
            first = Mirror("cpu")(given) if variant != "factory" else args
            module = module.to(where) if variant == "factory" else module
            module(*first[0], **first[1])
        if variant == "factory":
            return [dict(module.named_parameters()), dict(module.named_buffers())], ()
        module = module.to(where)
        torch.manual_seed(seed)
        if variant == "move":
            return _moved(module, args, where), ()
        return RUNS[variant](module, args), args

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(variant, run, device, values=variant != "factory")


def variants_of(info: Any) -> list[str]:
    """The variants that the database says the module has."""
    lacks = {"errors"} if info.supports_gradgrad else {"errors", "gradgrad"}
    return [v for v in MEANING if v not in lacks]
