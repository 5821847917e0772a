"""Function transforms, forward mode, fake tensors, export and compile."""

import io

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn import functional as F

from neuron_dist.testing.op_mirror import differs

D = "neuron"


def f(t):
    return (t.sin() * t).sum()


@pytest.mark.parametrize(
    "fn",
    [
        grad(f),
        jacrev(f),
        jacfwd(f),
        hessian(f),
        vmap(grad(f)),
        vmap(lambda u: u @ u),
        vmap(lambda u: torch.cumsum(u, 0)),
        vmap(lambda u: F.softmax(u, 0)),
        vmap(lambda u: u + 1, in_dims=1, out_dims=1),
        vmap(lambda u: u.clone().index_add_(0, torch.ones(1, device=u.device).long(), u[:1])),
        vmap(lambda u: F.conv1d(u[None, None], torch.ones(1, 1, 2, device=u.device))),
        lambda t: jvp(f, (t,), (torch.ones_like(t),)),
        lambda t: vjp(f, t)[1](torch.ones((), device=t.device)),
        lambda t: linearize(f, t)[1](torch.ones_like(t)),
        torch.func.functionalize(lambda t: t.clone().add_(1)),
        lambda t: torch.autograd.functional.jacobian(torch.sin, t[0]),
    ],
)
def test_transforms(fn):
    assert differs(fn, torch.randn(3, 4)) is None


def test_per_sample_gradients():
    model = nn.Linear(4, 2).to(D)
    params = {k: p.detach() for k, p in model.named_parameters()}
    loss = lambda p, u: functional_call(model, p, (u,)).sum()  # noqa: E731
    x = torch.randn(3, 4, device=D)
    got = vmap(grad(loss), in_dims=(None, 0))(params, x)
    assert got["weight"].equal(x[:, None, :].expand(3, 2, 4))


def test_randomness_under_vmap():
    x = torch.zeros(3, 4, device=D)
    different = vmap(torch.rand_like, randomness="different")(x)
    same = vmap(torch.rand_like, randomness="same")(x)
    assert not different[0].equal(different[1]) and same[0].equal(same[1])


def test_gradcheck_in_all_modes():
    x = torch.randn(3, dtype=torch.float64, device=D, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(torch.sin, x)


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.randn(3, 4, device=D)
        assert x.device == torch.device("neuron:0")
        assert (x @ x.t()).sum().device == x.device
        assert x.cpu().device.type == "cpu" and x.cpu().to(D).device == x.device
        assert nn.Linear(4, 2, device=D)(x).shape == (3, 2)
        q = torch.randn(1, 2, 3, 8, device=D)
        assert F.scaled_dot_product_attention(q, q, q).shape == q.shape
    with torch.device("meta"):
        layer = nn.Linear(3, 2)
    assert layer.to_empty(device=D).weight.device.type == D


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


def test_export():
    model, x = Block().to(D).eval(), torch.randn(2, 4, device=D)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert program.module()(x).equal(model(x))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    more = torch.randn(5, 4, device=D)
    assert torch.export.load(file).module()(more).equal(model(more))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    torch._dynamo.reset()

    def step(x, w):
        y = F.layer_norm((x @ w).relu(), (3,))
        return y.sum() + torch.arange(3, device=x.device).sum()

    def run(x, w):
        out = torch.compile(step, backend=backend)(x, w)
        return [out.detach(), *torch.autograd.grad(out, [x, w])]

    x, w = torch.randn(2, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    assert differs(run, x, w) is None


def test_trace_and_script():
    x = torch.randn(2, device=D)
    assert torch.jit.trace(lambda t: t.sin() + 1, x)(x).equal(x.sin() + 1)
