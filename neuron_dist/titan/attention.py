"""Attention with a dense mask, in place of FlexAttention.

FlexAttention differentiates on CUDA only. This one spells attention as matmul, softmax, matmul, the same operators on
every device, so that a CPU run and a neuron run can be compared digit by digit; the fused CPU kernel would round
differently. It comes in through TorchTitan's own override hook.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import FlexAttention

__all__ = ["OVERRIDE", "DenseFlexAttention", "dense_attention", "dense_flex_attention"]

OVERRIDE = f"{__name__}.dense_flex_attention"
"""What ``override.imports`` of a TorchTitan config has to hold."""


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
    batch, heads = block_mask.shape[:2]
    queries, keys = scores.shape[2:]
    hidden = ~create_mask(block_mask.mask_mod, batch, heads, queries, keys, device=scores.device)
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
        out_BLNH = out_BNLH.transpose(1, 2)
        return (
            out_BLNH if out_transform is None else out_transform(out_BLNH, lse_BNL.transpose(1, 2))
        )


@override(
    target=FlexAttention.Config,
    exact=True,
    description="attention with a dense mask, on any device",
)
def dense_flex_attention(config: FlexAttention.Config) -> DenseFlexAttention.Config:
    """Replaces FlexAttention wherever a model has it; named in ``override.imports``."""
    return derive(config, DenseFlexAttention.Config)
