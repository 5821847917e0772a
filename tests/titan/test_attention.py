"""Dense attention gives what flex_attention gives, forward on any input and backward against plain attention.

Variable-length attention gives what plain attention gives to each document alone.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from neuron_dist.titan import shims

shims.before_import("cpu")
from torchtitan.models.common.attention import create_varlen_metadata_for_document  # noqa: E402

from neuron_dist.titan.attention import DenseVarlenAttention, dense_attention  # noqa: E402


def causal_documents(documents: torch.Tensor):  # type: ignore[no-untyped-def]
    def mask_mod(b, h, q, kv):  # type: ignore[no-untyped-def]
        return (q >= kv) & (documents[b, q] == documents[b, kv])

    return mask_mod


def window_after_zero(b, h, q, kv):  # type: ignore[no-untyped-def]
    """Row 0 may attend to nothing."""
    return (q >= kv) & (q - kv < 7) & (q > 0)


DOCUMENTS = torch.tensor([[0] * 40 + [1] * 88, [0] * 128])


@pytest.mark.parametrize(
    "mask_mod", [causal_documents(DOCUMENTS), window_after_zero], ids=["documents", "window"]
)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("with_score_mod", [False, True])
def test_equals_flex_attention(mask_mod, kv_heads: int, with_score_mod: bool) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 128, 16) for heads in (4, kv_heads, kv_heads))
    block_mask = create_block_mask(mask_mod, 2, None, 128, 128, device="cpu")
    score_mod = (lambda s, b, h, q, kv: s + 0.1 * (q - kv) * (h + 1)) if with_score_mod else None
    out, lse = dense_attention(q, k, v, block_mask=block_mask, score_mod=score_mod, scale=0.3)
    want, want_lse = flex_attention(
        q,
        k,
        v,
        block_mask=block_mask,
        score_mod=score_mod,
        scale=0.3,
        enable_gqa=kv_heads != 4,
        return_lse=True,
    )
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse[:, :, 1:], want_lse[:, :, 1:], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_plain_attention() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 128, 16, requires_grad=True) for _ in range(3)]
    block_mask = create_block_mask(lambda b, h, q, kv: q >= kv, 2, None, 128, 128, device="cpu")
    out, _ = dense_attention(*inputs, block_mask=block_mask)
    got = torch.autograd.grad(out.square().sum(), inputs)
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    for a, b in zip(got, torch.autograd.grad(plain.square().sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_row_without_keys_gives_zeros_and_finite_gradients() -> None:
    inputs = [torch.randn(1, 1, 128, 16, requires_grad=True) for _ in range(3)]
    block_mask = create_block_mask(window_after_zero, 1, None, 128, 128, device="cpu")
    out, _ = dense_attention(*inputs, block_mask=block_mask)
    assert out[0, 0, 0].eq(0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), inputs))


@pytest.mark.parametrize("window", [(-1, 0), (-1, -1), (5, 0)], ids=["causal", "all", "window"])
def test_variable_length_attention_is_plain_attention_of_each_document(
    window: tuple[int, int],
) -> None:
    torch.manual_seed(0)
    lengths = [[10, 22], [32]]
    inputs = [torch.randn(2, 32, 4, 16, requires_grad=True) for _ in range(3)]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    attention = DenseVarlenAttention(DenseVarlenAttention.Config(window_size=window))
    masks = create_varlen_metadata_for_document(positions)
    out = attention(*inputs, attention_masks=masks)
    want = torch.stack(
        [
            torch.cat(
                [
                    _alone([t[i, at : at + n] for t in inputs], window)
                    for n, at in zip(row, [0, *row], strict=False)
                ]
            )
            for i, row in enumerate(lengths)
        ]
    )
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(out.square().sum(), inputs)
    for a, b in zip(got, torch.autograd.grad(want.square().sum(), inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _alone(inputs: list[torch.Tensor], window: tuple[int, int]) -> torch.Tensor:
    """Attention of one document, (length, heads, width)."""
    length = inputs[0].shape[0]
    behind = torch.arange(length).unsqueeze(1) - torch.arange(length)
    left, right = (n if n >= 0 else length for n in window)
    q, k, v = (t.transpose(0, 1) for t in inputs)
    mask = (behind <= left) & (-behind <= right)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.transpose(0, 1)
