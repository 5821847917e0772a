"""Layers that torch treats by device: recurrent cells, convolutions, CTC, attention, optimizers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex

from neuron_dist.testing.op_mirror import differs

D = "neuron"


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "options",
    [{}, {"bidirectional": True, "num_layers": 2}, {"batch_first": True, "bias": False}],
    ids=["plain", "deep", "no_bias"],
)
def test_recurrent(kind, options):
    """Close, not equal: torch has cells for accelerators, which add in another order than the CPU's loop."""
    torch.manual_seed(0)
    host = kind(3, 4, **options)
    device = copy.deepcopy(host).to(D)
    x = torch.randn(5, 2, 3)
    a, b = host(x)[0], device(x.to(D))[0]
    torch.testing.assert_close(b.cpu(), a)
    a.sin().sum().backward()
    b.sin().sum().backward()
    for p, q in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(dims, dtype, transposed):
    name = f"conv{'_transpose' if transposed else ''}{dims}d"

    def run(x, w, b):
        y = getattr(F, name)(x, w, b, stride=2, padding=1, groups=2)
        return [y.detach(), *torch.autograd.grad(y, [x, w, b], torch.ones_like(y))]

    size = (5,) * dims
    shapes = [(2, 4, *size), (4, 2, *(3,) * dims), (8 if transposed else 4,)]
    if transposed:
        shapes[1] = (4, 4, *(3,) * dims)
    args = [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]
    assert differs(run, *args) is None
    args[0] = args[0].detach()[..., ::2].requires_grad_()
    assert differs(run, *args) is None


@pytest.mark.parametrize("lengths", ["device", "host", "list"])
def test_ctc(lengths):
    logits = torch.randn(10, 2, 5).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 5, (2, 3))

    def run(x, t):
        ins, outs = [10, 9], [3, 2]
        if lengths != "list":
            on = x.device if lengths == "device" else "cpu"
            ins, outs = torch.tensor(ins, device=on), torch.tensor(outs, device=on)
        loss = F.ctc_loss(x, t, ins, outs)
        return [loss.detach(), *torch.autograd.grad(loss, x)]

    assert differs(run, logits, targets) is None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"enable_gqa": True}, {"scale": 0.3}],
    ids=["plain", "causal", "gqa", "scale"],
)
def test_attention(options, grad):
    heads = 2 if "enable_gqa" in options else 4
    q = torch.randn(2, 4, 6, 8, requires_grad=grad)
    k, v = (torch.randn(2, heads, 6, 8, requires_grad=grad) for _ in range(2))

    def run(q, k, v):
        out = F.scaled_dot_product_attention(q, k, v, **options)
        grads = torch.autograd.grad(out.sin().sum(), [q, k, v]) if grad else []
        return [out.detach(), *grads]

    assert differs(run, q, k, v) is None


def test_flex_attention_forward_is_the_cpus(monkeypatch):
    def run(q):
        mask = flex.create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device=q.device)
        return flex.flex_attention(
            q, q, q, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j)
        )

    monkeypatch.setattr(flex, "_WARNINGS_SHOWN", set())  # once in a process
    with pytest.warns(UserWarning):  # torch would have it compiled
        assert differs(run, torch.randn(1, 2, 128, 16)) is None


def test_flex_attention_backward_and_autocast():
    """The CPU has no backward; scaled_dot_product_attention with the same bias is what to compare with."""
    q = torch.randn(1, 2, 64, 16, device=D, requires_grad=True)
    slope = torch.randn(2, device=D, requires_grad=True)
    i = torch.arange(64, device=D)
    out = flex.flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + slope[h] * (i - j))
    got = torch.autograd.grad(out.sin().sum(), [q, slope])
    bias = slope[:, None, None] * (i[:, None] - i)
    want = F.scaled_dot_product_attention(q, q, q, attn_mask=bias[None])
    torch.testing.assert_close(out, want)
    for a, b in zip(got, torch.autograd.grad(want.sin().sum(), [q, slope]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    with torch.autocast(D, dtype=torch.bfloat16):
        assert flex.flex_attention(q, q, q).dtype == torch.bfloat16


def test_foreach_takes_scalars_from_the_cpu():
    def run(*xs):
        xs = [x.clone() for x in xs]
        torch._foreach_addcdiv_(xs, xs, xs, torch.tensor([1.0, 2.0]))
        return [*xs, *torch._foreach_addcmul(xs, xs, xs, torch.tensor([1.0, 2.0]))]

    assert differs(run, torch.randn(3), torch.randn(2)) is None
    x = [torch.ones(2, device=D)]
    with pytest.raises(RuntimeError, match="same device"):
        torch._foreach_addcdiv_(x, [torch.ones(2)], x, torch.ones(1))


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]
)
@pytest.mark.parametrize("form", ["foreach", "fused"])
def test_optimizers(kind, form):
    def run(x):
        p = nn.Parameter(x.clone())
        optimizer = kind([p], lr=0.1, **{form: True})
        for _ in range(3):
            p.grad = p.detach().sin()
            optimizer.step()
        return p.detach()

    assert differs(run, torch.randn(5, 3)) is None


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_fused_adam_with_states_of_bfloat16_rounds_them_after_the_step(
    name: str, tensor_lr: bool, amsgrad: bool
) -> None:
    """As CUDA's kernels do, and the CPU's do not."""
    torch.manual_seed(0)
    params, grads = ([torch.randn(5, 3), torch.randn(7)] for _ in range(2))
    states = [[t.abs().bfloat16() for t in grads] for _ in range(3 if amsgrad else 2)]
    steps = [torch.tensor(3.0) for _ in params]

    def step(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        def on(tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
            return [t.to(device, dtype, copy=True) for t in tensors]

        own = [on(params, torch.float32), on(grads, torch.float32)]
        own += [on(s, dtype) for s in states] + [[]] * (3 - len(states))
        getattr(torch, name)(
            *own,
            on(steps, torch.float32),
            lr=torch.tensor(0.1, device=device) if tensor_lr else 0.1,
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.1,
            eps=1e-8,
            amsgrad=amsgrad,
            maximize=False,
        )
        return [t.cpu() for part in (own[0], *own[2:]) for t in part]

    want = step("cpu", torch.float32)
    want[2:] = [t.bfloat16() for t in want[2:]]
    got = step("neuron", torch.bfloat16)
    assert [t.dtype for t in got] == [t.dtype for t in want]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_group_norm_keeps_channels_last():
    """torch makes the input contiguous for every other device."""
    x = torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last)
    norm = nn.GroupNorm(3, 6)
    out = copy.deepcopy(norm).to("neuron")(x.to("neuron"))
    assert out.stride() == norm(x).stride() != (96, 16, 4, 1)
    assert out.cpu().equal(norm(x))
    for module, shape in ((norm, (6,)), (nn.GroupNorm(3, 9), (2, 6, 4, 4))):
        with pytest.raises(RuntimeError) as on_cpu:
            module(torch.ones(shape))
        with pytest.raises(RuntimeError) as on_neuron:
            copy.deepcopy(module).to("neuron")(torch.ones(shape, device="neuron"))
        assert str(on_neuron.value).splitlines()[0] == str(on_cpu.value).splitlines()[0]
