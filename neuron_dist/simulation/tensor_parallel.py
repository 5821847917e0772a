"""Tensor parallelism as NxD and Megatron do it, for tensors on the meta device: what is computed and what is sent.

Hidden states are [sequence, batch, hidden], cut along the sequence between the parallel blocks (sequence parallel). A
column block gathers them once, and once more in its backward pass instead of keeping the whole; a row block
reduce-scatters its sum. Without sequence parallelism there is one all_reduce: forward after a row block, backward before
a column block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neuron_dist.simulation.architecture import Run
from neuron_dist.simulation.program import exchange

__all__ = ["all_reduced", "columns", "leave"]


def _gather(x: Tensor, run: Run) -> Tensor:
    """[S / tp, B, H] of each rank to [S, B, H]."""
    whole = x.new_empty(x.shape[0] * run.tp, *x.shape[1:])
    exchange("all_gather", whole.nbytes)
    return whole


def _scatter(x: Tensor, run: Run) -> Tensor:
    """The sum over ranks, [S, B, H] to [S / tp, B, H]."""
    exchange("reduce_scatter", x.nbytes)
    return x.new_empty(x.shape[0] // run.tp, *x.shape[1:])


class _ColumnBlock(torch.autograd.Function):
    """Several linear layers of one input, cut by their outputs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, run: Run, count: int, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[:count], tensors[count:]
        ctx.save_for_backward(x, *weights)
        ctx.run, ctx.biased = run, [b is not None for b in biases]
        whole = _gather(x, run) if run.shards_sequence else x
        return tuple(F.linear(whole, w, b) for w, b in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        run: Run = ctx.run
        whole = _gather(x, run) if run.shards_sequence else x
        flat = whole.flatten(0, 1)
        rows = [g.flatten(0, 1) for g in grads]
        total = rows[0] @ weights[0]
        for g, weight in zip(rows[1:], weights[1:], strict=True):
            total = torch.addmm(total, g, weight)
        total = total.view_as(whole)
        if run.shards_sequence:
            total = _scatter(total, run)
        elif run.tp > 1:
            exchange("all_reduce", total.nbytes)
        weight_grads = [g.t() @ flat for g in rows]
        bias_grads = [g.sum(0) if b else None for g, b in zip(rows, ctx.biased, strict=True)]
        return (total, None, None, *weight_grads, *bias_grads)


class _Leave(torch.autograd.Function):
    """The sum of a row block's parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Run) -> Tensor:
        ctx.run = run
        if run.shards_sequence:
            return _scatter(x, run)
        exchange("all_reduce", x.nbytes)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (_gather(grad, ctx.run) if ctx.run.shards_sequence else grad), None


def columns(x: Tensor, run: Run, *linears: nn.Linear) -> tuple[Tensor, ...]:
    """The outputs of linear layers that hold this rank's columns, for [S, B, H] or its cut ``x``."""
    weights, biases = [n.weight for n in linears], [n.bias for n in linears]
    return _ColumnBlock.apply(x, run, len(linears), *weights, *biases)


def leave(x: Tensor, run: Run) -> Tensor:
    """What a row block's part ``x`` becomes between the blocks: the sum over ranks, cut where sequence parallel."""
    return _Leave.apply(x, run) if run.tp > 1 else x


def all_reduced(x: Tensor, run: Run) -> Tensor:
    """The same tensor after an all_reduce that needs no gradient of its own."""
    if run.tp > 1:
        exchange("all_reduce", x.nbytes)
    return x
