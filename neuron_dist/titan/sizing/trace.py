"""One forward and backward pass of a stage's sample, with TorchTitan's own modules, sharding and FSDP2, on fake tensors.

A process group of backend ``fake`` stands for all ranks, this process for rank 0, whose shards are the largest. Nothing
is computed or allocated: :class:`LiveBytes` sees what would be.

Shapes: B micro-batch, L tokens of a sequence on this rank, D width.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from neuron_dist.titan.check import Plan
from neuron_dist.titan.problems import Problem, RecipeError
from neuron_dist.titan.sizing.live import LiveBytes, allocated_bytes
from neuron_dist.titan.sizing.stages import Stage, sample_config

__all__ = ["ATTENTION", "Held", "Trace", "Tracer"]

ATTENTION = {
    "fused": "as a kernel of the hardware does it, which keeps no scores",
    "dense": "as a run here does it, which keeps the scores of all pairs of tokens",
}


@dataclass
class Held:
    """Bytes that a part of a stage holds on the device."""

    parameters: int = 0
    """This rank's shards, buffers among them."""
    gradients: int = 0
    """Of the shards."""
    optimizer: int = 0
    """Its states."""
    unsharded: int = 0
    """Gathered parameters that stay between forward and backward."""
    accumulated: int = 0
    """Gradients of gathered parameters, where they are added up over micro-batches before they are reduced."""
    activations: int = 0
    """Kept by one micro-batch from forward to backward."""

    def __add__(self, other: Held) -> Held:
        return Held(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __mul__(self, factor: int) -> Held:
        return Held(*(factor * a for a in _values(self)))


def _values(held: Held) -> list[int]:
    return [getattr(held, name) for name in Held.__dataclass_fields__]


@dataclass
class Trace:
    """What one pass of a stage's sample showed."""

    held: Held
    """By the whole sample."""
    layers: dict[int, Held] = field(default_factory=dict)
    """Kind -> held by one layer."""
    backward_peak: int = 0
    """The most bytes of one micro-batch, parameters included, until the last layer has run backward."""
    end_peak: int = 0
    """The most bytes afterwards, gradients included."""


class Tracer:
    """Traces the stages of a plan; a context manager that holds the fake process group."""

    def __init__(self, plan: Plan, attention: str = "fused") -> None:
        """``attention`` is one of :data:`ATTENTION`."""
        self.plan = plan
        self.attention = attention
        self.config = copy.deepcopy(plan.config)
        self.micro_batch = (
            self.config.parallelism.pipeline_parallel_microbatch_size
            if plan.layout.pipeline > 1
            else self.config.training.local_batch_size
        )
        self._traces: dict[Any, Trace] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Tracer:
        from torchtitan.config.override import apply_overrides
        from torchtitan.distributed import ParallelDims
        from torchtitan.distributed import utils as dist_utils

        from neuron_dist.titan import shims

        self._stack.enter_context(_quiet())
        shims.build_block_masks_eagerly()
        self._stack.enter_context(_fake_world(self.plan.layout.ranks))
        self.dims = ParallelDims.from_config(self.config.parallelism, self.plan.layout.ranks)
        self.dims.build_mesh()
        dist_utils.set_spmd_backend(self.config.parallelism.spmd_backend)
        self.config.model_spec.model.update_from_config(config=self.config)
        if self.config.override.imports:
            apply_overrides(self.config.override, self.config)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def trace(self, stage: Stage) -> Trace:
        """The figures of the stage's sample; those of an equal sample are used again."""
        if stage.sample not in self._traces:
            self._traces[stage.sample] = self._traced(stage)
        return self._traces[stage.sample]

    def _traced(self, stage: Stage) -> Trace:
        device = self.plan.device
        model = self._model(stage)
        live = LiveBytes(device)
        kernel = _fused_attention() if self.attention == "fused" else contextlib.nullcontext()
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            _balanced_experts(),
            kernel,
            live,
            _whole_shapes_uncounted(live),
        ):
            where = "cpu" if self.config.training.enable_cpu_offload else device
            model.to_empty(device=where)
            with torch.no_grad(), _uninitialized():
                model.init_weights(buffer_device=torch.device(device) if where == "cpu" else None)
            model.train()
            probe = _Probe(model, stage.sample.kinds, live)
            before = live.live
            self._run(model, stage, probe)
            trace = Trace(Held(), backward_peak=probe.backward_peak, end_peak=live.peak)
            states = self._optimizer_states(model)
            self._account(model, trace, probe, states, live_before=before)
        return trace

    def _model(self, stage: Stage) -> Any:
        """The sample's modules, on the meta device, as ``parallelize_fn`` leaves them."""
        from torchtitan.config import TORCH_DTYPE_MAP
        from torchtitan.distributed.pipeline_parallel import _split_module
        from torchtitan.tools.utils import set_default_dtype

        config = self.config
        with torch.device("meta"), set_default_dtype(TORCH_DTYPE_MAP[config.training.dtype]):
            model = sample_config(config.model_spec.model, stage.sample_layers).build()
        if self.plan.layout.pipeline > 1:
            names = [f"layers.{i}" for i in range(len(stage.sample_layers))]
            names += ["tok_embeddings"] * stage.sample.first
            names += ["norm", "lm_head"] * stage.sample.last
            model = _split_module(model, names)
        try:
            return config.model_spec.parallelize_fn(
                model,
                parallel_dims=self.dims,
                training=config.training,
                parallelism=config.parallelism,
                compile_config=_no_compile(config.compile),
                ac_config=config.activation_checkpoint,
                dump_folder=config.dump_folder,
            )
        except (NotImplementedError, ValueError) as error:  # what TorchTitan says of layouts that it does not have
            recipe = self.plan.recipe
            expected = f"TorchTitan cannot lay it out so: {' '.join(str(error).split())}"
            problem = Problem(recipe.source.where("config"), "config", recipe.own.config, expected)
            raise RecipeError([problem]) from error

    def _run(self, model: Any, stage: Stage, probe: _Probe) -> None:
        config, device = self.config, self.plan.device
        shape = (self.micro_batch, config.training.seq_len)
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        labels = torch.zeros(shape, dtype=torch.int64, device=device)
        positions = torch.zeros(shape, dtype=torch.int64, device=device)
        extra: dict[str, Any] = {"positions": positions}
        if self._masks():
            extra["attention_masks"] = model.get_attention_masks(positions=positions)
        if self.dims.cp_enabled:
            tokens, labels, extra = self._context_parallel(tokens, labels, extra)
        inputs = tokens if stage.sample.first else self._hidden(tokens.shape[1])
        loss_fn = config.loss.build(compile_config=_no_compile(config.compile))
        if stage.sample.last and hasattr(loss_fn, "set_lm_head"):
            loss_fn.set_lm_head(model.lm_head)
            model._skip_lm_head = True
        out = model(inputs, **extra)
        probe.forward_is_over()
        if stage.sample.last:
            count = torch.zeros((), dtype=torch.int64, device=device)
            out, _ = loss_fn(out, labels, count, positions=extra["positions"])
            out.backward()
        else:
            torch.autograd.backward(out, torch.empty_like(out))
        probe.backward_is_over()

    def _masks(self) -> bool:
        from torchtitan.models.common.attention import FlexAttention

        attention = getattr(self.config.model_spec.model, "first_attention", None)
        return isinstance(getattr(attention, "inner_attention", None), FlexAttention.Config)

    def _context_parallel(
        self, tokens: Any, labels: Any, extra: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """This rank's share of the sequence; the load balancer changes which, not how much, so it is left out."""
        from torchtitan.distributed.context_parallel import prepare_context_parallel_input

        return prepare_context_parallel_input(
            tokens, labels, extra, self.dims.get_mesh("cp"), torch.device(self.plan.device), None
        )

    def _hidden(self, length: int) -> torch.Tensor:
        """What a stage receives from the one before it: [B, L, D], cut along L over tensor-parallel ranks as layers
        leave it."""
        from torchtitan.config import TORCH_DTYPE_MAP

        config = self.config
        parts = self.dims.tp if config.parallelism.enable_sequence_parallel else 1
        hidden = torch.empty(
            self.micro_batch,
            length // parts,
            config.model_spec.model.dim,
            dtype=TORCH_DTYPE_MAP[config.training.mixed_precision_param],
            device=self.plan.device,
        )
        if self.dims.tp_enabled:
            placement = Shard(1) if parts > 1 else Replicate()
            hidden = DTensor.from_local(hidden, self.dims.get_mesh("tp"), [placement])
        return hidden.requires_grad_()

    def _optimizer_states(self, model: Any) -> dict[Any, int]:
        """Parameter -> bytes of its optimizer's states on the device, as the first step makes them."""
        optimizers = self.config.optimizer.build(model_parts=[model])
        for parameter in model.parameters():  # no expert is without gradient
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
        optimizers.step()
        return {
            parameter: sum(self._bytes(tensor) for tensor in state.values())
            for optimizer in optimizers.optimizers
            for parameter, state in optimizer.state.items()
        }

    def _account(
        self,
        model: Any,
        trace: Trace,
        probe: _Probe,
        states: dict[Any, int],
        live_before: int,
    ) -> None:
        reduce = getattr(torch, self.config.training.mixed_precision_reduce)

        def held(module: nn.Module) -> Held:
            result = Held()
            for tensor in [*module.parameters(), *module.buffers()]:
                result.parameters += self._bytes(tensor)
                if tensor.requires_grad:
                    result.gradients += self._bytes(tensor.grad)
                    result.optimizer += states.get(tensor, 0)
            inside = set(module.modules())
            for fsdp, nbytes in probe.unsharded.items():
                if fsdp._module_info.module in inside:
                    result.unsharded += nbytes
                    if fsdp.sharded_param.requires_grad:
                        elements = math.prod(fsdp._orig_size)
                        result.accumulated += allocated_bytes(elements * reduce.itemsize)
            return result

        trace.held = held(model)
        kept = probe.after_forward - live_before - sum(probe.unsharded.values())
        trace.held.activations = max(0, kept)
        for kind, layer, kept in zip(
            probe.kinds, model.layers.values(), probe.layer_activations, strict=True
        ):
            trace.layers[kind] = held(layer)
            trace.layers[kind].activations = kept

    def _bytes(self, tensor: Any) -> int:
        """Of this rank's shard of a tensor, if it lies on the device."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.plan.device:
            return 0
        return tensor.nbytes


class _Probe:
    """Reads the live bytes between layers and where the last layer's backward ends."""

    def __init__(self, model: Any, kinds: tuple[int, ...], live: LiveBytes) -> None:
        self.kinds, self.live = kinds, live
        self.model = model
        self.layer_activations: list[int] = []
        self.unsharded: dict[Any, int] = {}
        self.after_forward = 0
        self.backward_peak = 0
        self._at: list[tuple[int, int]] = []
        layers = list(model.layers.values())
        for layer in layers:
            layer.register_forward_hook(self._between)
        if layers:
            layers[0].register_forward_pre_hook(self._between)
            layers[-1].register_forward_pre_hook(self._last_input)

    def _between(self, *_: Any) -> None:
        self._at.append((self.live.live, sum(self._gathered().values()) + self._in_flight()))

    def _last_input(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].requires_grad:
            args[0].register_hook(lambda grad: self._last_layer_is_over())

    def _last_layer_is_over(self) -> None:
        self.backward_peak = self.live.peak
        self.live.reset_peak()

    def forward_is_over(self) -> None:
        self.after_forward = self.live.live - self._in_flight()
        self.unsharded = self._gathered()
        for (before, held), (after, kept) in zip(self._at, self._at[1:], strict=False):
            self.layer_activations.append(max(0, (after - kept) - (before - held)))

    def backward_is_over(self) -> None:
        self.backward_peak = self.backward_peak or self.live.peak

    def _gathered(self) -> dict[Any, int]:
        """FSDP2's parameter -> bytes of it that are gathered now."""
        return {
            parameter: sum(map(_storage_bytes, parameter.all_gather_outputs))
            for group in self._groups()
            for parameter in group.fsdp_params
        }

    def _in_flight(self) -> int:
        """Bytes that all-gathers have brought and FSDP2 has not yet copied out, of layers that it fetches ahead too."""
        results = [
            result
            for group in self._groups()
            for result in (
                group._all_gather_result,
                getattr(group.comm_ctx.all_gather_state, "all_gather_result", None),
            )
            if result is not None
        ]
        outputs = {id(r.all_gather_output): r.all_gather_output for r in results}
        return sum(map(_storage_bytes, outputs.values()))

    def _groups(self) -> Iterator[Any]:
        """FSDP2's groups of parameters."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                yield from module._get_fsdp_state()._fsdp_param_groups


def _storage_bytes(tensor: torch.Tensor) -> int:
    return allocated_bytes(tensor.untyped_storage().nbytes())


@contextlib.contextmanager
def _fake_world(ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RuntimeError("sizes are worked out in a process without a process group")
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _balanced_experts() -> Iterator[None]:
    """Each expert gets as many tokens as the others: fake tensors do not know how many it is."""
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

    reorder = AllToAllTokenDispatcher._local_reorder

    def local_reorder(self: Any, *args: Any) -> Any:
        result = reorder(self, *args)
        self._sized_tokens = result[0].shape[0]
        return result

    def splits(self: Any, local: Any, gathered: Any, ep_size: int) -> Any:
        even = [self._sized_tokens // ep_size] * ep_size
        return gathered.reshape(-1), even, even

    with (
        mock.patch.object(AllToAllTokenDispatcher, "_local_reorder", local_reorder),
        mock.patch.object(AllToAllTokenDispatcher, "_sync_token_count_exchange", splits),
    ):
        yield


@contextlib.contextmanager
def _whole_shapes_uncounted(live: LiveBytes) -> Iterator[None]:
    """DTensor asks each operator for the shape of the whole result by calling it on fake tensors of all ranks' size."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    ask = ShardingPropagator._propagate_tensor_meta_non_cached

    def uncounted(self: Any, schema: Any) -> Any:
        with live.paused():
            return ask(self, schema)

    with mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", uncounted):
        yield


@contextlib.contextmanager
def _fused_attention() -> Iterator[None]:
    """Attention as one operator, which keeps its inputs, its output and the log-sum-exp."""
    from neuron_dist.titan import attention

    def fused(
        q_BNLH: torch.Tensor,
        k_BNLH: torch.Tensor,
        v_BNLH: torch.Tensor,
        *,
        block_mask: object,
        score_mod: object = None,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        operator = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
        out, lse, *_ = operator(q_BNLH, k_BNLH, v_BNLH, scale=scale)
        return out, lse

    with mock.patch.object(attention, "dense_attention", fused):
        yield


@contextlib.contextmanager
def _uninitialized() -> Iterator[None]:
    """Parameters keep no values; buffers are made."""
    from torchtitan.protocols.module import Module

    with mock.patch.object(Module, "_init_self_parameters", lambda self: None):
        yield


def _no_compile(config: Any) -> Any:
    """A compiler's own choices are not known here; the figures are those of eager execution."""
    return type(config)(enable=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
