"""Attention with a dense mask, in place of FlexAttention and of variable-length attention.

FlexAttention differentiates on CUDA only, and the flash kernel behind VarlenAttention is CUDA's. This one spells
attention as matmul, softmax, matmul, the same operators on every device, so that a CPU run and a neuron run can be
compared digit by digit; the fused CPU kernel would round differently. It comes in through TorchTitan's own override
hook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention, VarlenAttention, VarlenMetadata

__all__ = [
    "OVERRIDES",
    "DenseFlexAttention",
    "DenseVarlenAttention",
    "dense_attention",
    "dense_flex_attention",
    "dense_varlen_attention",
]

OVERRIDES: dict[type, str] = {
    FlexAttention.Config: f"{__name__}.dense_flex_attention",
    VarlenAttention.Config: f"{__name__}.dense_varlen_attention",
}
"""Attention that does not run here -> what ``override.imports`` of a TorchTitan config has to hold."""


def dense_attention(
    q_BNLH: torch.Tensor,
    k_BNLH: torch.Tensor,
    v_BNLH: torch.Tensor,
    *,
    block_mask: BlockMask,
    score_mod: Callable[..., torch.Tensor] | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention under ``block_mask`` and the log-sum-exp of its scores, as flex_attention defines both.

    Scores and softmax are fp32 whatever the inputs are. Fewer key than query heads means grouped queries. A row
    that may attend to nothing gives zeros.
    """
    batch, heads = block_mask.shape[:2]
    visible = create_mask(
        block_mask.mask_mod, batch, heads, q_BNLH.shape[2], k_BNLH.shape[2], device=q_BNLH.device
    )
    return _attend(q_BNLH, k_BNLH, v_BNLH, visible, score_mod, scale)


def _attend(
    q_BNLH: torch.Tensor,
    k_BNLH: torch.Tensor,
    v_BNLH: torch.Tensor,
    visible: torch.Tensor,
    score_mod: Callable[..., torch.Tensor] | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = q_BNLH.shape[1] // k_BNLH.shape[1]
    if groups > 1:
        k_BNLH = k_BNLH.repeat_interleave(groups, dim=1)
        v_BNLH = v_BNLH.repeat_interleave(groups, dim=1)
    scale = q_BNLH.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(q_BNLH, k_BNLH.transpose(-2, -1)).float() * scale
    if score_mod is not None:
        scores = _over_scores(score_mod)(
            scores, *(torch.arange(n, device=scores.device) for n in scores.shape)
        )
    hidden = ~visible
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)
    return torch.matmul(weights.to(v_BNLH.dtype), v_BNLH), torch.logsumexp(scores, dim=-1)


def _over_scores(score_mod: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A score_mod, which is written for one score, over all of batch, head, query and key."""
    for index in (4, 3, 2, 1):
        score_mod = torch.vmap(
            score_mod, in_dims=(0, *(0 if i == index else None for i in range(1, 5)))
        )
    return score_mod


class DenseFlexAttention(FlexAttention):
    """FlexAttention's interface and masks, computed densely."""

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: BlockMask,
        score_mod: Callable[..., torch.Tensor] | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        out_BNLH, lse_BNL = dense_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            block_mask=attention_masks,
            score_mod=score_mod,
            scale=scale,
        )
        return _epilogue(out_BNLH, lse_BNL, out_transform)


class DenseVarlenAttention(VarlenAttention):
    """VarlenAttention's interface, documents and window, computed densely over each sequence of the batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: VarlenMetadata,
        scale: float | None = None,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        batch, length = q_BLNH.shape[:2]
        out_BNLH, lse_BNL = _attend(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            _visible(attention_masks.cu_seq_q, batch, length, self.window_size),
            None,
            scale,
        )
        return _epilogue(out_BNLH, lse_BNL, out_transform)


def _visible(
    cu_seq: torch.Tensor, batch: int, length: int, window: tuple[int, int]
) -> torch.Tensor:
    """Which key (last dim) a query may attend to: (batch, 1, length, length).

    Documents are cut at ``cu_seq``, positions in the flattened batch. TorchTitan begins one with each sequence, so
    none reaches from one into the next.
    """
    at = torch.arange(batch * length, device=cu_seq.device, dtype=cu_seq.dtype)
    document = torch.searchsorted(cu_seq, at, right=True).view(batch, 1, length)
    visible = document.unsqueeze(-1) == document.unsqueeze(-2)
    distance = at[:length].unsqueeze(-1) - at[:length]  # how far the key lies behind the query
    left, right = window
    if left >= 0:
        visible = visible & (distance <= left)
    if right >= 0:
        visible = visible & (distance >= -right)
    return visible


def _epilogue(
    out_BNLH: torch.Tensor,
    lse_BNL: torch.Tensor,
    out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    out_BLNH = out_BNLH.transpose(1, 2)
    return out_BLNH if out_transform is None else out_transform(out_BLNH, lse_BNL.transpose(1, 2))


# A converter may have made subclasses of these configs (LoRA does, to freeze what they build), so it is what they build
# that counts; another attention that was derived from these stays.


@override(target=FlexAttention.Config, description="attention with a dense mask, on any device")
def dense_flex_attention(config: FlexAttention.Config) -> FlexAttention.Config:
    """Replaces FlexAttention wherever a model has it; named in ``override.imports``."""
    return derive(config, DenseFlexAttention.Config) if config._owner is FlexAttention else config


@override(
    target=VarlenAttention.Config,
    description="variable-length attention with a dense mask, on any device",
)
def dense_varlen_attention(config: VarlenAttention.Config) -> VarlenAttention.Config:
    """Replaces VarlenAttention wherever a model has it; named in ``override.imports``."""
    return (
        derive(config, DenseVarlenAttention.Config) if config._owner is VarlenAttention else config
    )
