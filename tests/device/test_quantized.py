"""Quantized tensors: over the same memory as their CPU kernels see, with the quantizer on the CPU."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neuron_dist.testing.op_mirror import differs

D = "neuron"
DTYPES = (torch.quint8, torch.qint8, torch.qint32)


def quantize(x, dtype=torch.quint8):
    return torch.quantize_per_tensor(x, 0.1, 3, dtype)


@pytest.fixture
def q():
    return quantize(torch.randn(4, 6, device=D))


@pytest.mark.parametrize("dtype", DTYPES)
def test_per_tensor(dtype):
    def run(x):
        q = quantize(x, dtype)
        return q.int_repr(), q.dequantize(), q.q_scale(), q.q_zero_point(), str(q.qscheme())

    assert differs(run, torch.randn(3, 4)) is None


def test_per_channel():
    def run(x, scales, zeros):
        q = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
        assert q.q_per_channel_axis() == 0
        return q.int_repr(), q.dequantize(), q.q_per_channel_scales(), q.q_per_channel_zero_points()

    zeros = torch.tensor([0, 1, 2])
    assert differs(run, torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), zeros) is None


@pytest.mark.parametrize(
    "fn",
    [
        lambda q: q[1:3].t(),
        lambda q: q.view(2, 12),
        lambda q: q.permute(1, 0).contiguous(),
        lambda q: torch.cat([q, q]),
        lambda q: q.relu(),
        lambda q: F.max_pool2d(q.view(1, 1, 4, 6), 2),
        lambda q: q.clone().copy_(torch.ones(4, 6, device=q.device)),
        lambda q: q.sort()[0],
        lambda q: q.mean(),
        lambda q: torch.ops.quantized.add(q, q, 0.2, 0),
        lambda q: torch.ops.quantized.cat([q, q], 0, 0.1, 0),
    ],
)
def test_operators(fn):
    def run(x):
        r = fn(quantize(x))
        return r.int_repr(), r.q_scale(), r.q_zero_point()

    assert differs(run, torch.randn(4, 6)) is None


def test_views_share_memory(q):
    view = q[1:3]
    assert view.is_quantized and view.device == q.device
    assert view.untyped_storage().data_ptr() == q.untyped_storage().data_ptr()
    view.copy_(quantize(torch.zeros(2, 6, device=D)))
    assert q.dequantize()[1:3].abs().sum() == 0


def test_copies(q):
    c = q.cpu()
    assert c.device.type == "cpu" and c.int_repr().equal(q.int_repr().cpu())
    back = c.to(D)
    assert back.device == q.device and back.int_repr().equal(q.int_repr())
    assert back.q_scale() == 0.1 and q.to("neuron:1").int_repr().cpu().equal(c.int_repr())
    assert torch.empty_like(q).is_quantized and "quantization_scheme" in repr(q)


def test_serialization(q):
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4], device=D), torch.zeros(4, device=D).long()
    channels = torch.quantize_per_channel(torch.ones(4, 6, device=D), scales, zeros, 0, torch.qint8)
    for t in (q, channels):
        file = io.BytesIO()
        torch.save(t, file)
        for r in (
            copy.deepcopy(t),
            pickle.loads(pickle.dumps(t)),
            torch.load(io.BytesIO(file.getvalue())),
            torch.load(io.BytesIO(file.getvalue()), map_location="cpu").to(D),
        ):
            assert r.device == t.device and r.qscheme() == t.qscheme()
            assert r.int_repr().equal(t.int_repr()) and r.dequantize().equal(t.dequantize())


def test_linear_with_packed_weights():
    weight = torch.quantize_per_tensor(torch.randn(5, 6), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, torch.randn(5))
    x = torch.randn(4, 6)

    def run(x):
        return torch.ops.quantized.linear(quantize(x), packed, 0.1, 0).int_repr()

    assert differs(run, x) is None


def test_fake_quantize_trains():
    def run(x):
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
        y.sum().backward()
        return y.detach(), x.grad

    assert differs(run, torch.randn(3, 4, requires_grad=True)) is None
    fake = torch.ao.quantization.FakeQuantize().to(D)
    nn.Sequential(nn.Linear(3, 3).to(D), fake)(torch.randn(2, 3, device=D)).sum().backward()


def test_kinds_that_no_kernel_takes_are_named(q):
    with pytest.raises(NotImplementedError, match="no quantized CPU kernel for aten::cumsum"):
        q.cumsum(0)
