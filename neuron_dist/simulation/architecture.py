"""An architecture of transformer, and how one micro-batch of it runs on a rank."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch

__all__ = ["RECOMPUTE", "Run", "Shape"]

RECOMPUTE = ("attention", "activation", "mlp", "layer")
"""What a backward pass may compute again: the core of attention, the MLP's activation, the MLP, the whole layer."""


@dataclass(frozen=True)
class Shape:
    """An architecture."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    vocab_multiple: int = 1
    """The vocabulary is padded to a multiple of this times the tensor parallel size."""
    gated: bool = True
    """SwiGLU (three matrices) instead of GELU (two)."""
    rms: bool = True
    """RMSNorm instead of LayerNorm."""
    bias: bool = False
    causal: bool = True
    rotary: bool = True
    positions: int = 0
    """Learned positions, where not rotary."""
    segments: int = 0
    """Learned kinds of token (BERT)."""
    pre_norm: bool = True
    tied: bool = False
    """The head's matrix is the embedding's."""
    dropout: float = 0.0
    transform: bool = False
    """A dense layer, GELU and norm before the head (BERT's masked language model)."""

    def __post_init__(self) -> None:
        for inner, outer in (("heads", "hidden"), ("kv_heads", "heads")):
            if getattr(self, outer) % getattr(self, inner):
                raise ValueError(
                    f"{inner} is {getattr(self, inner)}, expected a divisor of {outer} ({getattr(self, outer)})"
                )


@dataclass(frozen=True)
class Run:
    """How one micro-batch of it runs on one rank."""

    sequence: int
    batch: int = 1
    tp: int = 1
    sequence_parallel: bool = True
    flash: bool = True
    """One fused attention operator, instead of matmul, mask, softmax, matmul."""
    recompute: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.bfloat16
    gradient_dtype: torch.dtype = torch.float32
    """Gradients are added up over micro-batches in this."""

    def __post_init__(self) -> None:
        unknown = sorted(self.recompute - set(RECOMPUTE))
        if unknown:
            near = difflib.get_close_matches(unknown[0], RECOMPUTE, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(RECOMPUTE)}"
            )
            raise ValueError(f"recompute names {unknown[0]!r}; {hint}")
        if self.sequence % self.tp:
            raise ValueError(f"sequence is {self.sequence}, expected a multiple of tp ({self.tp})")

    @property
    def shards_sequence(self) -> bool:
        return self.tp > 1 and self.sequence_parallel

    @property
    def local_sequence(self) -> int:
        """Tokens of a sequence that this rank keeps between the parallel blocks."""
        return self.sequence // self.tp if self.shards_sequence else self.sequence

    def divide(self, count: int, what: str) -> int:
        if count % self.tp:
            raise ValueError(f"{what} is {count}, expected a multiple of tp ({self.tp})")
        return count // self.tp
