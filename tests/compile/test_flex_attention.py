"""FlexAttention: eager and compiled, forward and backward, with block masks that a compiled function makes."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
D = "neuron"


def causal(b, h, q, k):
    return q >= k


def nearer_is_more(score, b, h, q, k):
    return score - 0.1 * (q - k).abs()


def inputs(device=D):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 128, 16), torch.randn(2, 2, 128, 16), torch.randn(2, 2, 128, 16)
    return [t.to(device).requires_grad_() for t in (q, k, v)]


def by_hand(q, k, v):
    """The same attention in plain operators."""
    at = torch.arange(128, device=q.device)
    distance = (at[:, None] - at[None, :]).abs()
    k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
    scores = q @ k.mT / 4 - 0.1 * distance
    scores = scores.masked_fill(at[:, None] < at[None, :], -torch.inf)
    return scores.softmax(-1) @ v


def run(attend):
    leaves = inputs()
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


def test_eager_and_compiled():
    torch._dynamo.reset()
    on_cpu = create_block_mask(causal, None, None, 128, 128, device="cpu")
    mask = torch.compile(create_block_mask)(causal, None, None, 128, 128, device=D)
    assert mask.kv_num_blocks.device.type == D
    assert mask.to_dense().cpu().equal(on_cpu.to_dense())

    def attend(q, k, v, mask=mask):
        return flex_attention(q, k, v, nearer_is_more, mask, enable_gqa=True)

    eager = run(attend)
    with torch.no_grad():  # torch has no backward for the CPU
        assert eager[0].cpu().equal(attend(*(t.detach() for t in inputs("cpu")), on_cpu))
    for got, want in zip(eager, run(by_hand), strict=True):
        torch.testing.assert_close(got, want)
    for got, want in zip(run(torch.compile(attend, fullgraph=True)), eager, strict=True):
        assert got.equal(want)


def test_masks_that_read_tensors():
    torch._dynamo.reset()
    documents = torch.arange(128, device=D) // 40

    def same_document(b, h, q, k):
        return documents[q] == documents[k]

    mask = torch.compile(create_block_mask)(same_document, 2, None, 128, 128, device=D)
    dense = documents[:, None] == documents[None, :]
    q = torch.randn(2, 4, 128, 16, device=D)
    out = torch.compile(flex_attention)(q, q, q, block_mask=mask)
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=dense)
    torch.testing.assert_close(out, want)
