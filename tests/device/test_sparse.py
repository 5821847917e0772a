"""Sparse tensors in each layout that the CPU has kernels for."""

import copy
import io
import pickle
import warnings

import pytest
import torch

from neuron_dist.testing.op_mirror import differs

D = "neuron"
COMPRESSED = [
    (torch.sparse_csr, None),
    (torch.sparse_csc, None),
    (torch.sparse_bsr, (2, 2)),
    (torch.sparse_bsc, (2, 2)),
]
LAYOUTS = [(torch.sparse_coo, None), *COMPRESSED]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def dense():
    torch.manual_seed(0)
    return torch.randn(4, 6).relu()


@pytest.mark.parametrize(("layout", "block"), LAYOUTS)
@pytest.mark.parametrize(
    "fn",
    [
        lambda s: s,
        lambda s: s.to_dense(),
        lambda s: s * 2,
        lambda s: s.clone(),
        lambda s: s.transpose(0, 1),
        lambda s: s.values() if s.layout != torch.sparse_coo else s._values(),
        lambda s: torch.zeros_like(s),
        lambda s: s.double(),
    ],
)
def test_operators_of_all_layouts(fn, layout, block):
    run = lambda x: fn(x.to_sparse(layout=layout, blocksize=block))  # noqa: E731
    assert differs(run, dense()) is None


@pytest.mark.parametrize(
    "fn",
    [
        lambda s: torch.sparse.softmax(s, 1),
        lambda s: torch.sparse.sum(s, 0),
        lambda s: s * s,
        lambda s: s.sin(),
        lambda s: torch.cat([s, s]),
        lambda s: s[1],
        lambda s: s.unsqueeze(0),
        lambda s: torch.sparse.mm(s, s.t()),
        lambda s: torch.hspmm(s, torch.ones(6, 2, device=s.device)),
        lambda s: s.to_dense().sparse_mask(s),
        lambda s: s.clone().zero_(),
        lambda s: s.clone().sparse_resize_((5, 6), 2, 0),
        lambda s: s.to_sparse_csr(),
    ],
)
def test_coo(fn):
    assert differs(lambda x: fn(x.to_sparse()), dense()) is None


@pytest.mark.parametrize(
    "fn",
    [
        lambda s, y: s @ y,
        lambda s, y: s + s,
        lambda s, y: s.sin(),
        lambda s, y: s.sum(),
        lambda s, y: torch.addmm(torch.ones(4, 3, device=s.device), s, y),
        lambda s, y: torch.sparse.sampled_addmm(s, torch.ones(4, 2, device=s.device), y.t()[:2]),
        lambda s, y: torch.sparse.mm(s, y, "amax"),
        lambda s, y: s.clone().copy_(s).mul_(3),
    ],
)
def test_csr(fn):
    assert differs(lambda x, y: fn(x.to_sparse_csr(), y), dense(), torch.randn(6, 3)) is None


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_csr_backward(reduce):
    def run(x, y):
        s = x.to_sparse_csr().requires_grad_()
        out = torch.sparse.mm(s, y, reduce)
        return [out.detach(), *torch.autograd.grad(out.sum(), [s, y])]

    assert differs(run, dense(), torch.randn(6, 3, requires_grad=True)) is None


@pytest.mark.parametrize(("layout", "block"), COMPRESSED)
def test_values_share_memory(layout, block):
    s = dense().to(D).to_sparse(layout=layout, blocksize=block)
    s.values().zero_()
    assert s.to_dense().abs().sum() == 0


@pytest.mark.parametrize(("layout", "block"), LAYOUTS)
def test_copies_and_serialization(layout, block):
    c = dense().to_sparse(layout=layout, blocksize=block)
    s = c.to(D)
    assert s.layout == layout and s.device.type == D and s.cpu().to_dense().equal(c.to_dense())
    file = io.BytesIO()
    torch.save(s, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))
    on_cpu = torch.load(io.BytesIO(file.getvalue()), map_location="cpu")
    assert on_cpu.device.type == "cpu"
    for r in (loaded, copy.deepcopy(s), pickle.loads(pickle.dumps(s)), on_cpu.to(D)):
        assert r.layout == layout and r.device == s.device and r.to_dense().equal(s.to_dense())
    assert "neuron:0" in repr(s)
