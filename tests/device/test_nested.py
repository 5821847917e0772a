"""Nested tensors: the strided kind, whose kernels are the CPU's, and the jagged one, which is a Python subclass."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neuron_dist.testing.op_mirror import differs

D = "neuron"


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def parts():
    torch.manual_seed(0)
    return [torch.randn(2, 4), torch.randn(3, 4)]


def nested(parts, layout=torch.strided, **kwargs):
    return torch.nested.nested_tensor(list(parts), layout=layout, device=parts[0].device, **kwargs)


def leaves(t):
    return list(t.unbind()) if t.is_nested else t


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize(
    "fn",
    [
        lambda t: t + t,
        lambda t: t * 2,
        lambda t: t.relu(),
        lambda t: F.gelu(t),
        lambda t: F.softmax(t, -1),
        lambda t: F.linear(t, torch.ones(5, 4, device=t.device)),
        lambda t: F.layer_norm(
            t, (4,), torch.ones(4, device=t.device), torch.ones(4, device=t.device)
        ),
        lambda t: torch.nested.to_padded_tensor(t, 0.0),
        lambda t: t.transpose(1, 2),
        lambda t: t.clone(),
        lambda t: t.double(),
        lambda t: t[0],
        lambda t: t.chunk(2, -1)[0],
        lambda t: torch.nested.as_nested_tensor(list(t.unbind())),
    ],
)
def test_operators(fn, layout, parts):
    assert differs(lambda *p: leaves(fn(nested(p, layout))), *parts) is None


def test_backward(parts):
    def run(*p):
        t = nested(p, requires_grad=True)
        (t * 2).to_padded_tensor(0.0).sin().sum().backward()
        return leaves(t.grad)

    assert differs(run, *parts) is None


def test_in_place_and_views(parts):
    t = nested([p.to(D) for p in parts])
    t.add_(1)
    assert t[0].cpu().equal(parts[0] + 1)
    t.unbind()[1].zero_()
    assert t[1].abs().sum() == 0


def test_copies(parts):
    c = nested(parts)
    n = c.to(D)
    assert n.is_nested and n.device.type == D and n[1].cpu().equal(parts[1])
    back = n.cpu()
    assert back.device.type == "cpu" and back[0].equal(parts[0])


def test_transformers_take_them(parts):
    parts = [p.to(D) for p in parts]
    attention = nn.MultiheadAttention(4, 2, batch_first=True).to(D).eval()
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).to(D).eval()
    host = copy.deepcopy(layer).cpu()
    with torch.no_grad():
        t = nested(parts)
        assert attention(t, t, t, need_weights=False)[0].is_nested
        for a, b in zip(layer(t).unbind(), host(t.cpu()).unbind(), strict=True):
            assert a.cpu().equal(b)
        mask = torch.tensor([[False, False, True], [False, False, False]], device=D)
        nn.TransformerEncoder(layer, 1).eval()(
            torch.randn(2, 3, 4, device=D), src_key_padding_mask=mask
        )


def test_jagged_attention_and_backward(parts):
    def run(*p):
        t = nested(p, torch.jagged, requires_grad=True)
        q = t.unflatten(-1, (2, 2)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q)
        out.values().sum().backward()
        return out.values().detach(), t.grad.values()

    assert differs(run, *parts) is None


def test_jagged_moves_and_is_saved(parts):
    t = nested([p.to(D) for p in parts], torch.jagged)
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    for r in (torch.load(file, weights_only=False), copy.deepcopy(t), t.cpu().to(D)):
        assert r.device.type == D and r.values().equal(t.values())
