"""Training on neuron gives the CPU's losses, bit for bit."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Block(nn.Module):
    """A Llama layer: RMSNorm, rotary attention with fewer key heads, SwiGLU."""

    def __init__(self, dim: int = 64, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wkv = nn.Linear(dim, 2 * kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1, self.w3 = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * dim, dim, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)

    def rotate(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * freqs[:, None]).flatten(3).type_as(x)

    def forward(self, x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        h = self.norm1(x)
        q = self.rotate(self.wq(h).view(b, s, self.heads, -1), freqs).transpose(1, 2)
        k, v = self.wkv(h).view(b, s, 2 * self.kv_heads, -1).chunk(2, dim=2)
        k, v = self.rotate(k, freqs).transpose(1, 2), v.transpose(1, 2)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        h = self.norm2(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.out = nn.RMSNorm(64), nn.Linear(64, 100, bias=False)
        angles = torch.outer(torch.arange(16.0), 1e4 ** -(torch.arange(0, 16, 2) / 16))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.freqs)
        return nn.functional.cross_entropy(
            self.out(self.norm(x)).flatten(0, 1).float(), tokens.flatten()
        )


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(
            self.out(self.body(self.embed(tokens))).flatten(0, 1), tokens.flatten()
        )


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.body = nn.Sequential(
            nn.Conv1d(16, 32, 3, padding=1), nn.BatchNorm1d(32), nn.GELU(), nn.Conv1d(32, 100, 1)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(self.embed(tokens).transpose(1, 2)), tokens)


def losses(
    model: nn.Module, tokens: torch.Tensor, device: str, optimizer: str, autocast: bool
) -> list[float]:
    model, tokens = copy.deepcopy(model).to(device), tokens.to(device)
    if optimizer == "sgd":
        stepper = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)
    else:
        stepper = torch.optim.AdamW(
            model.parameters(), 1e-2, fused=optimizer == "fused", foreach=optimizer == "foreach"
        )
    out = []
    for _ in range(5):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = model(tokens)
        stepper.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        stepper.step()
        out.append(loss.item())
    return out


@pytest.mark.parametrize("optimizer", ["sgd", "foreach", "fused"])
@pytest.mark.parametrize("kind", [Llama, Encoder, Convnet])
def test_losses_equal_the_cpus(kind, optimizer):
    torch.manual_seed(0)
    model, tokens = kind(), torch.randint(0, 100, (4, 16))
    with sdpa_kernel(SDPBackend.MATH):  # the form that the device uses
        cpu = losses(model, tokens, "cpu", optimizer, False)
        neuron = losses(model, tokens, "neuron", optimizer, False)
    assert neuron == cpu and cpu[-1] < cpu[0]


def test_autocast_trains():
    torch.manual_seed(0)
    got = losses(Llama(), torch.randint(0, 100, (4, 16)), "neuron", "fused", True)
    assert got[-1] < got[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_cells(kind):
    torch.manual_seed(0)
    cell, x = kind(3, 4, 2), torch.randn(5, 2, 3)
    other = copy.deepcopy(cell).to("neuron")
    a, b = cell(x)[0], other(x.to("neuron"))[0]
    torch.testing.assert_close(b.cpu(), a)
    a.square().sum().backward()
    b.square().sum().backward()
    for p, q in zip(cell.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad)


def test_pieces_of_sync_batch_norm():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5, device="neuron")
    weight, bias = torch.rand(3, device="neuron"), torch.rand(3, device="neuron")
    stats = [torch.batch_norm_stats(half, 1e-5) for half in x.chunk(2)]
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        x,
        torch.stack([m for m, _ in stats]),
        torch.stack([i for _, i in stats]),
        None,
        None,
        0.1,
        1e-5,
        torch.tensor([15.0, 15.0], device="neuron"),
    )
    y = torch.batch_norm_elemt(x, weight, bias, mean, invstd, 1e-5)
    ref_in = x.detach().clone().requires_grad_()
    w, c = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    ref = nn.functional.batch_norm(ref_in, None, None, w, c, training=True)
    torch.testing.assert_close(y, ref)
    g = torch.randn_like(x)
    ref.backward(g)
    sum_dy, sum_dy_xmu, gw, gb = torch.batch_norm_backward_reduce(
        g, x, mean, invstd, weight, True, True, True
    )
    gx = torch.batch_norm_backward_elemt(
        g, x, mean, invstd, weight, sum_dy, sum_dy_xmu, torch.tensor([30], device="neuron")
    )
    torch.testing.assert_close(gx, ref_in.grad)
    torch.testing.assert_close(gw, w.grad)
    torch.testing.assert_close(gb, c.grad)
