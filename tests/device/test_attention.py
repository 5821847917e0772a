import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

attention = nn.functional.scaled_dot_product_attention
MASKS = {
    "none": None,
    "bool": torch.ones(9, 9, dtype=torch.bool).tril(),
    "float": torch.linspace(-1, 1, 81).view(9, 9),
    "batched": torch.ones(2, 1, 9, 9, dtype=torch.bool).tril(),
}


def run(device, qkv, mask, **kwargs):
    leaves = [t.to(device).detach().clone().requires_grad_() for t in qkv]
    out = attention(*leaves, attn_mask=None if mask is None else mask.to(device), **kwargs)
    out.float().square().sum().backward()
    return [out.detach().cpu(), *(t.grad.cpu() for t in leaves)], type(out.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [*MASKS, "causal"])
def test_bits_are_the_cpus(mask, dtype):
    torch.manual_seed(0)
    qkv = [torch.randn(2, 4, 9, 16, dtype=dtype) for _ in range(3)]
    m = MASKS.get(mask)
    m = m.to(dtype) if m is not None and m.is_floating_point() else m
    cpu, _ = run("cpu", qkv, m, is_causal=mask == "causal")
    neuron, node = run("neuron", qkv, m, is_causal=mask == "causal")
    assert "Efficient" in node
    assert all(a.equal(b) for a, b in zip(cpu, neuron, strict=True))


def test_grouped_heads():
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    cpu, _ = run("cpu", (q, k, k + 1), None, is_causal=True, enable_gqa=True)
    neuron, _ = run("neuron", (q, k, k + 1), None, is_causal=True, enable_gqa=True)
    assert all(a.equal(b) for a, b in zip(cpu, neuron, strict=True))


def test_the_rest_goes_the_math_way():
    torch.manual_seed(0)
    q = torch.randn(2, 4, 9, 16)
    with sdpa_kernel(SDPBackend.MATH):
        assert "Efficient" not in run("neuron", (q, q, q), None)[1]
    dropped = attention(*(q.to("neuron"),) * 3, dropout_p=0.5)
    assert dropped.shape == q.shape
    bias = torch.zeros(9, 9, device="neuron", requires_grad=True)
    attention(*(q.to("neuron"),) * 3, attn_mask=bias).sum().backward()
    assert bias.grad is not None


def test_dtensor_has_a_rule(run_child):
    run_child(
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("cpu:fake,neuron:fake", rank=0, world_size=2, store=FakeStore())
        mesh = init_device_mesh("neuron", (2,))
        local = torch.randn(2, 4, 8, 16, device="neuron")
        q = distribute_tensor(local, mesh, [Shard(1)], src_data_rank=None).requires_grad_()
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        out.sum().backward()
        assert out.placements == q.grad.placements == (Shard(1),)
        half = local[:, :2]
        want = torch.nn.functional.scaled_dot_product_attention(half, half, half, is_causal=True)
        assert out.to_local().equal(want)
        """
    )
