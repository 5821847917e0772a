"""The optimizers of torch's database (``optim_db``) on a device and the CPU: a few steps, every bit of parameters and state."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from neuron_dist.testing.op_checks import Check, compare
from neuron_dist.testing.op_mirror import Mirror

__all__ = ["MEANING", "all_optimizers", "check", "dtypes_of", "errors", "samples", "variants_of"]

MEANING = {
    "for-loop": "`foreach=False`: parameters and state after 4 steps",
    "foreach": "`foreach=True`",
    "fused": "`fused=True`",
    "default": "no implementation asked for; on a device torch takes `foreach` where it can, so the CPU's `foreach` counts",
    "capturable": "`capturable=True` (the CPU is let through torch's list of devices for it), also with tensors for lr and betas",
    "differentiable": "`differentiable=True`: gradients through a step",
    "state_dict": "state saved, loaded on the other kind of device and continued there; `torch.save` with `map_location`",
    "groups": "parameter groups, one added later, a frozen parameter, gradients set to zero instead of None",
    "sparse": "sparse gradients",
    "schedulers": "the database's learning rate schedulers",
    "hooks": "hooks before and after step, on saving and loading state; a closure",
    "scaled": "`torch.amp.GradScaler`, a step with an infinite gradient among them; with `fused=True` too",
    "errors": "inputs that the database says must raise",
}

SHAPES = ((4, 5), (6, 3), (7,), ())
REAL = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
STEPS = 4


def all_optimizers() -> dict[str, Any]:
    """The optimizers of the database by their names."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


def dtypes_of(info: Any) -> tuple[str, ...]:
    """The dtypes in which ``info`` is tested."""
    return REAL + (COMPLEX if info.supports_complex else ())


def samples(info: Any, dtype: torch.dtype) -> list[Any]:
    """The database's settings of the optimizer: those for all devices, and those that GPUs have more."""
    # "mps" has tensors as learning rates, "cuda" capturable settings
    every = info.optim_inputs_func("mps", dtype)
    return [*every, *(s for s in info.optim_inputs_func("cuda", dtype) if "capturable" in s.kwargs)]


def variants_of(info: Any, sample: Any, dtype: torch.dtype) -> list[str]:
    """The variants that the database says there are for this sample."""
    capturable = bool(sample.kwargs.get("capturable"))
    tensor_lr = isinstance(sample.kwargs.get("lr"), Tensor)
    dense = not info.only_supports_sparse_grads
    plain = dense and not capturable
    foreach = "foreach" in info.supported_impls and not tensor_lr
    has = {
        "for-loop": plain,
        "foreach": plain and foreach,
        "fused": plain and "cpu" in info.supports_fused_on and "fused" in info.supported_impls,
        "default": plain,
        "capturable": dense and capturable,
        "differentiable": plain and "differentiable" in info.supported_impls and not tensor_lr
        and dtype == torch.float64,
        "state_dict": plain,
        "groups": plain and info.supports_param_groups,
        "sparse": not capturable
        and (info.only_supports_sparse_grads or (info.supports_sparse and not _dense_only(sample)))
        and dtype in (torch.float32, torch.float64),
        "schedulers": plain and not tensor_lr,
        "hooks": plain,
        "scaled": plain and not info.step_requires_closure and dtype == torch.float32,
    }  # fmt: skip
    return [v for v in MEANING if has.get(v, False)]


def _dense_only(sample: Any) -> bool:
    """Whether these settings are refused with sparse gradients."""
    return any(sample.kwargs.get(k) for k in ("weight_decay", "momentum", "nesterov"))


def errors(info: Any) -> list[Any]:
    """Settings that must raise, at construction or in a step."""
    made = (
        []
        if info.optim_error_inputs_func is None
        else info.optim_error_inputs_func("cpu", torch.float32)
    )
    return [e.optimizer_error_input for e in made]


@dataclass
class Setting:
    """Parameters on a device, and what they should become."""

    info: Any
    params: list[nn.Parameter]
    targets: list[Tensor]

    def loss(self) -> Tensor:
        """A scalar whose gradients differ from element to element."""
        parts = [
            ((p - t).abs() ** 2).sum()
            for p, t in zip(self.params, self.targets, strict=True)
            if p.requires_grad
        ]
        return torch.stack([part.float() for part in parts]).sum()

    def step(
        self,
        optimizer: Any,
        scale: Callable[[Tensor], Tensor] = lambda loss: loss,
        set_to_none: bool = True,
    ) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = scale(self.loss())
            loss.backward()
            return loss

        if self.info.step_requires_closure:
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss.detach()


def _setting(info: Any, dtype: torch.dtype, device: str) -> Setting:
    generator = torch.Generator().manual_seed(11)
    shapes = [s for s in SHAPES if len(s) == 2] if info.name == "Muon" else SHAPES
    wide = torch.complex128 if dtype.is_complex else torch.float64
    made = [torch.randn(s, dtype=wide, generator=generator).to(dtype) for s in (*shapes, *shapes)]
    mirror = Mirror(device)
    n = len(shapes)
    return Setting(info, [nn.Parameter(mirror(t)) for t in made[:n]], [mirror(t) for t in made[n:]])


def _state(optimizer: Any, params: list[nn.Parameter], device: str) -> Any:
    """Parameters, their state (moved to the device: where a step counter stands is the optimizer's choice), settings."""
    to_device = lambda tree: tree_map_only(Tensor, lambda t: t.detach().clone().to(device), tree)  # noqa: E731
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group.pop("foreach", None)
    beside = [
        key
        for p in params
        for key, value in sorted(optimizer.state.get(p, {}).items())
        if isinstance(value, Tensor) and value.dim() and value.device != p.device
    ]
    return [[p.detach() for p in params], to_device(state), beside]


def _run(setting: Setting, optimizer: Any, device: str) -> Any:
    losses = [setting.step(optimizer) for _ in range(STEPS)]
    return [losses, _state(optimizer, setting.params, device)]


def _plain(kwargs: dict[str, Any]) -> Callable[[Setting, dict[str, Any], str], Any]:
    def run(setting: Setting, sample: dict[str, Any], device: str) -> Any:
        given = {k: v for k, v in kwargs.items() if v is not None}
        if "foreach" in given and "foreach" not in setting.info.supported_impls:
            given.pop("foreach")
        return _run(setting, setting.info.optim_cls(setting.params, **sample, **given), device)

    return run


def _default(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    # Adafactor keeps to its loop unless told otherwise
    chooses = hasattr(
        sys.modules[setting.info.optim_cls.__module__], "_default_to_fused_or_foreach"
    )
    foreach = chooses and not isinstance(sample.get("lr"), Tensor)
    return _plain({"foreach": True if foreach and device == "cpu" else None})(
        setting, sample, device
    )


@contextmanager
def _capturable_on_cpu(optimizer: type) -> Iterator[None]:
    name = "_get_capturable_supported_devices"
    with patch.object(
        sys.modules[optimizer.__module__], name, lambda *args, **kwargs: ["cpu", "neuron"]
    ):
        yield


def _capturable(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    out = []
    for foreach in (False, True) if "foreach" in setting.info.supported_impls else (None,):
        fresh = _setting(setting.info, setting.params[0].dtype, device)
        with _capturable_on_cpu(setting.info.optim_cls):
            out.append(_plain({"foreach": foreach})(fresh, sample, device))
    return out


def _differentiable(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    leaves: list[Tensor] = []
    moved = []
    for p, t in zip(setting.params, setting.targets, strict=True):
        grad = t.clone().requires_grad_()
        leaf = p.clone()
        leaf.grad = grad.clone()
        leaves += [p, grad]
        moved.append(leaf)
    optimizer = setting.info.optim_cls(moved, **sample, differentiable=True)
    optimizer.step()
    roots = [p for p in moved if p.requires_grad]
    grads = torch.autograd.grad([(r.abs() ** 2).sum() for r in roots], leaves, allow_unused=True)
    return [[p.detach() for p in moved], [g for g in grads if g is not None]]


def _state_dict(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    first = setting.info.optim_cls(setting.params, **sample, **_for_loop(setting.info))
    for _ in range(2):
        setting.step(first)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    results = []
    for location in ("cpu", device):
        file.seek(0)
        state = torch.load(file, map_location=location, weights_only=True)
        fresh = [nn.Parameter(p.detach().clone()) for p in setting.params]
        other = Setting(setting.info, fresh, setting.targets)
        optimizer = setting.info.optim_cls(fresh, **sample, **_for_loop(setting.info))
        optimizer.load_state_dict(state)
        results.append(_run(other, optimizer, device))
    return results


def _for_loop(info: Any) -> dict[str, Any]:
    return {"foreach": False} if "foreach" in info.supported_impls else {}


def _groups(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    first, *rest, last = setting.params
    last.requires_grad_(False)
    lr = sample.get("lr", 1e-2)
    optimizer = setting.info.optim_cls(
        [{"params": [first], "lr": lr * 0.5}, {"params": [*rest, last]}],
        **sample,
        **_for_loop(setting.info),
    )
    losses = [setting.step(optimizer, set_to_none=False) for _ in range(2)]
    more = nn.Parameter(first.detach().clone())
    setting.params.append(more)
    setting.targets.append(setting.targets[0].clone())
    optimizer.add_param_group({"params": [more]})
    losses += [setting.step(optimizer, set_to_none=False) for _ in range(2)]
    return [losses, _state(optimizer, setting.params, device)]


def _sparse(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    weight = nn.Parameter(setting.params[0].detach().clone())
    optimizer = setting.info.optim_cls([weight], **sample)
    rows = torch.tensor([0, 2, 2, 1], device=device)
    losses = []
    for i in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.embedding(rows + (i % 2), weight, sparse=True).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [losses, _state(optimizer, [weight], device)]


def _schedulers(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    out = []
    for makers in setting.info.scheduler_inputs:
        fresh = _setting(setting.info, setting.params[0].dtype, device)
        optimizer = setting.info.optim_cls(fresh.params, **sample, **_for_loop(setting.info))
        made = [make(optimizer) for make in makers]
        for _ in range(STEPS):
            loss = fresh.step(optimizer)
            for scheduler in made:
                if isinstance(scheduler, ReduceLROnPlateau):
                    scheduler.step(loss)
                else:
                    scheduler.step()
        out.append(_state(optimizer, fresh.params, device))
    return out


def _hooks(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    seen: list[Any] = []
    optimizer = setting.info.optim_cls(setting.params, **sample, **_for_loop(setting.info))
    note = lambda name: lambda *args, **kwargs: seen.append((name, len(args)))  # noqa: E731
    optimizer.register_step_pre_hook(note("pre"))
    optimizer.register_step_post_hook(note("post"))
    optimizer.register_state_dict_pre_hook(note("saving"))
    optimizer.register_state_dict_post_hook(note("saved"))
    optimizer.register_load_state_dict_pre_hook(note("loading"))
    optimizer.register_load_state_dict_post_hook(note("loaded"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = setting.loss()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).detach() for _ in range(2)]
    optimizer.load_state_dict(optimizer.state_dict())
    losses.append(optimizer.step(closure).detach())
    return [losses, seen, _state(optimizer, setting.params, device)]


def _scaled(setting: Setting, sample: dict[str, Any], device: str) -> Any:
    fused = "fused" in setting.info.supported_impls and "cpu" in setting.info.supports_fused_on
    out = []
    for kwargs in [_for_loop(setting.info), {"fused": True}][: 1 + fused]:
        fresh = _setting(setting.info, setting.params[0].dtype, device)
        optimizer = setting.info.optim_cls(fresh.params, **sample, **kwargs)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        for i in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(fresh.loss()).backward()
            if i == 1:
                assert fresh.params[0].grad is not None
                fresh.params[0].grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
        out.append([scaler.get_scale(), _state(optimizer, fresh.params, device)])
    return out


def _erroneous(info: Any, sample: Any, device: str) -> Any:
    mirror = Mirror(device)
    params = mirror(sample.params)
    optimizer = info.optim_cls(params, **sample.kwargs)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = mirror(p.grad) if p.grad is not None else torch.rand_like(p)
    optimizer.step()


RUNS: dict[str, Callable[[Setting, dict[str, Any], str], Any]] = {
    "for-loop": _plain({"foreach": False}),
    "foreach": _plain({"foreach": True}),
    "fused": _plain({"fused": True}),
    "default": _default,
    "capturable": _capturable,
    "differentiable": _differentiable,
    "state_dict": _state_dict,
    "groups": _groups,
    "sparse": _sparse,
    "schedulers": _schedulers,
    "hooks": _hooks,
    "scaled": _scaled,
}


def check(
    info: Any, variant: str, sample: Any, dtype: torch.dtype, device: str = "neuron"
) -> Check:
    """One variant with one of the database's settings."""

    def run(where: str, seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        if variant == "errors":
            return _erroneous(info, sample, where), ()
        kwargs = tree_map_only(Tensor, Tensor.clone, sample.kwargs)
        return RUNS[variant](_setting(info, dtype, where), kwargs, where), ()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(variant, run, device)
