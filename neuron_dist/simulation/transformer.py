"""Transformers of published shapes as one rank holds them, to be recorded: plain PyTorch modules on the meta device.

Tensor parallelism is that of :mod:`neuron_dist.simulation.tensor_parallel`. Key and value heads are repeated where
there are fewer of them than ranks, as NxD's ``kv_replicator`` does.

Shapes in names: S sequence, B batch, H hidden, V vocabulary of this rank, N heads of this rank, D size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from neuron_dist.simulation.architecture import Run, Shape
from neuron_dist.simulation.program import Program, Recorder
from neuron_dist.simulation.tensor_parallel import all_reduced, columns, leave

__all__ = ["Piece", "embedding", "head", "layer"]


@dataclass(frozen=True)
class Piece:
    """A part of the model: what one micro-batch runs on one rank, forward and backward, and its parameters there."""

    program: Program
    parameters: int


def layer(shape: Shape, run: Run) -> Piece:
    """One transformer layer."""
    module = _on_meta(_Layer, shape, run)
    hidden = _hidden(shape, run)
    if "layer" in run.recompute:
        return _record(module, run, lambda: _again(module, hidden))
    return _record(module, run, lambda: module(hidden))


def embedding(shape: Shape, run: Run) -> Piece:
    """Token embedding (a share of the vocabulary) and what is added to it."""
    module = _on_meta(_Embedding, shape, run)
    tokens = torch.empty(run.sequence, run.batch, dtype=torch.int64, device="meta")
    return _record(module, run, lambda: module(tokens))


def head(shape: Shape, run: Run) -> Piece:
    """Last norm, logits (a share of the vocabulary) and cross entropy. A tied matrix is counted here too: with pipeline
    stages two ranks hold it."""
    module = _on_meta(_Head, shape, run)
    hidden = _hidden(shape, run)
    labels = torch.empty(run.sequence, run.batch, dtype=torch.int64, device="meta")
    return _record(module, run, lambda: module(hidden, labels))


def _on_meta(kind: Callable[..., nn.Module], shape: Shape, run: Run) -> nn.Module:
    with torch.device("meta"):
        return kind(shape, run).to(run.dtype)


def _hidden(shape: Shape, run: Run) -> Tensor:
    return torch.empty(
        run.local_sequence,
        run.batch,
        shape.hidden,
        dtype=run.dtype,
        device="meta",
        requires_grad=True,
    )


def _record(module: nn.Module, run: Run, forward: Callable[[], Tensor]) -> Piece:
    """Forward, backward, and each gradient added to its sum over the micro-batches."""
    parameters = list(module.parameters())
    sums = [torch.empty_like(p, dtype=run.gradient_dtype, requires_grad=False) for p in parameters]
    with Recorder() as recorder:
        out = forward()
        torch.autograd.backward(out, torch.empty_like(out))
        for total, parameter in zip(sums, parameters, strict=True):
            assert parameter.grad is not None
            total.add_(parameter.grad)
    return Piece(recorder.program, sum(p.numel() for p in parameters))


def _again(function: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)


def _norm(shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape.hidden) if shape.rms else nn.LayerNorm(shape.hidden)


class _Layer(nn.Module):
    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape, self.run = shape, run
        self.attention_norm, self.mlp_norm = _norm(shape), _norm(shape)
        self.attention, self.mlp = _Attention(shape, run), _MLP(shape, run)

    def forward(self, x_SBH: Tensor) -> Tensor:
        mlp = (lambda x: _again(self.mlp, x)) if "mlp" in self.run.recompute else self.mlp
        for norm, block in ((self.attention_norm, self.attention), (self.mlp_norm, mlp)):
            out = block(norm(x_SBH) if self.shape.pre_norm else x_SBH)
            x_SBH = (
                x_SBH + F.dropout(out, self.shape.dropout) if self.shape.dropout else x_SBH + out
            )
            if not self.shape.pre_norm:
                x_SBH = norm(x_SBH)
        return x_SBH


class _Attention(nn.Module):
    turns: Tensor
    """Cosines and sines of rotary positions, [2, S, 1, 1, D]."""
    hidden_from: Tensor
    """[S, S], true above the diagonal."""

    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape, self.run = shape, run
        self.head_dim = shape.hidden // shape.heads
        self.heads = run.divide(shape.heads, "heads")
        kv_heads = max(shape.kv_heads, run.tp)  # repeated where there are fewer than ranks
        self.kv_heads = run.divide(kv_heads, "kv_heads")
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q, self.k, self.v = (
            nn.Linear(shape.hidden, width, bias=shape.bias)
            for width in (q_width, kv_width, kv_width)
        )
        self.out = nn.Linear(q_width, shape.hidden, bias=shape.bias)
        self.register_buffer("turns", torch.empty(2, run.sequence, 1, 1, self.head_dim))
        self.register_buffer(
            "hidden_from", torch.empty(run.sequence, run.sequence, dtype=torch.bool)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = columns(x, self.run, self.q, self.k, self.v)
        q_SBND, k_SBND, v_SBND = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))
        if self.shape.rotary:
            q_SBND, k_SBND = self._turned(q_SBND), self._turned(k_SBND)
        q_BNSD, k_BNSD, v_BNSD = (t.permute(1, 2, 0, 3) for t in (q_SBND, k_SBND, v_SBND))
        if self.kv_heads < self.heads:
            k_BNSD, v_BNSD = (
                t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k_BNSD, v_BNSD)
            )
        core = self._flash if self.run.flash else self._core
        if (
            "attention" in self.run.recompute and not self.run.flash
        ):  # flash attention does so by itself
            out_BNSD = _again(core, q_BNSD, k_BNSD, v_BNSD)
        else:
            out_BNSD = core(q_BNSD, k_BNSD, v_BNSD)
        return leave(self.out(out_BNSD.permute(2, 0, 1, 3).flatten(2)), self.run)

    def _turned(self, x_SBND: Tensor) -> Tensor:
        first, second = x_SBND.chunk(2, -1)
        return x_SBND * self.turns[0] + torch.cat((-second, first), -1) * self.turns[1]

    def _flash(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention = torch.ops.aten._scaled_dot_product_efficient_attention
        return attention(q, k, v, None, True, self.shape.dropout, self.shape.causal)[0]

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores_BNSS = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        if self.shape.causal:
            scores_BNSS = scores_BNSS.masked_fill(self.hidden_from, -10000.0)
        chances_BNSS = F.softmax(scores_BNSS, -1, dtype=torch.float32).to(q.dtype)
        if self.shape.dropout:
            chances_BNSS = F.dropout(chances_BNSS, self.shape.dropout)
        return chances_BNSS @ v


class _MLP(nn.Module):
    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape, self.run = shape, run
        width = run.divide(shape.ffn, "ffn")
        names = ("gate", "up") if shape.gated else ("up",)
        self.into = nn.ModuleDict(
            {n: nn.Linear(shape.hidden, width, bias=shape.bias) for n in names}
        )
        self.down = nn.Linear(width, shape.hidden, bias=shape.bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = columns(x, self.run, *self.into.values())  # type: ignore[arg-type]
        again = "activation" in self.run.recompute
        active = _again(self._activation, *parts) if again else self._activation(*parts)
        return leave(self.down(active), self.run)

    def _activation(self, *parts: Tensor) -> Tensor:
        return F.silu(parts[0]) * parts[1] if self.shape.gated else F.gelu(parts[0])


def _local_vocab(shape: Shape, run: Run) -> int:
    unit = shape.vocab_multiple * run.tp
    return -(-shape.vocab // unit) * unit // run.tp


class _Embedding(nn.Module):
    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape, self.run = shape, run
        self.tokens = nn.Embedding(_local_vocab(shape, run), shape.hidden)
        if shape.positions:
            self.positions = nn.Parameter(torch.empty(shape.positions, 1, shape.hidden))
        if shape.segments:
            self.segments = nn.Embedding(shape.segments, shape.hidden)
            self.norm = _norm(shape)

    def forward(self, tokens_SB: Tensor) -> Tensor:
        run = self.run
        if run.tp == 1:
            x = self.tokens(tokens_SB)
        else:
            count = self.tokens.num_embeddings
            local_SB = tokens_SB - count * (run.tp - 1)  # where this rank's share begins
            elsewhere_SB = (local_SB < 0) | (local_SB >= count)
            x = self.tokens(local_SB.masked_fill(elsewhere_SB, 0))
            x = leave(x.masked_fill(elsewhere_SB.unsqueeze(-1), 0.0), run)
        if self.shape.positions:
            x = x + self.positions[: run.local_sequence]
        if self.shape.segments:
            x = self.norm(x + self.segments(torch.empty_like(tokens_SB)))
        return F.dropout(x, self.shape.dropout) if self.shape.dropout else x


class _Head(nn.Module):
    def __init__(self, shape: Shape, run: Run) -> None:
        super().__init__()
        self.shape, self.run = shape, run
        self.norm = _norm(shape)
        if shape.transform:
            self.dense = nn.Linear(shape.hidden, shape.hidden)
        self.out = nn.Linear(shape.hidden, _local_vocab(shape, run), bias=shape.transform)

    def forward(self, x: Tensor, labels_SB: Tensor) -> Tensor:
        x = self.norm(F.gelu(self.dense(x)) if self.shape.transform else x)
        (logits_SBV,) = columns(x, self.run, self.out)
        return _cross_entropy(logits_SBV.float(), labels_SB, self.run)


def _cross_entropy(logits_SBV: Tensor, labels_SB: Tensor, run: Run) -> Tensor:
    """Mean cross entropy of logits that are cut along the vocabulary."""
    highest = all_reduced(logits_SBV.detach().amax(-1, keepdim=True), run)
    shifted_SBV = logits_SBV - highest
    elsewhere_SB = (labels_SB < 0) | (labels_SB >= logits_SBV.shape[-1])
    own_SB = labels_SB.masked_fill(elsewhere_SB, 0)
    picked_SB = (
        shifted_SBV.gather(-1, own_SB.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere_SB, 0.0)
    )
    sums_SB = all_reduced(shifted_SBV.exp().sum(-1), run)
    return (sums_SB.log() - all_reduced(picked_SB, run)).mean()
