import pytest
import torch
from torch import nn

D = "neuron"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lists(dtype):
    x = torch.randn(4, 4, device=D)
    with torch.autocast(D, dtype=dtype):
        assert (x @ x).dtype == dtype
        assert nn.functional.linear(x, x).dtype == dtype
        assert (x @ x).exp().dtype == torch.float32
        assert (x @ x).sum().dtype == torch.float32
        assert nn.functional.layer_norm(x @ x, (4,)).dtype == torch.float32
        assert torch.addcmul(x, x @ x, x).dtype == torch.float32
        assert (x @ x).add(1).dtype == dtype
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(x.sigmoid(), x.sigmoid())
        with torch.autocast(D, enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_training_with_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).to(D)
    with torch.autocast(D, dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8, device=D)).square().mean()
    loss.backward()
    assert model[0].weight.grad.dtype == torch.float32
    assert (
        torch.bfloat16 in torch.neuron.get_amp_supported_dtype()
        and torch.neuron.is_bf16_supported()
    )


def test_grad_scaler():
    p = nn.Parameter(torch.ones(3, device=D))
    optimizer = torch.optim.SGD([p], 1.0)
    scaler = torch.amp.GradScaler(D, init_scale=8.0)
    scaler.scale((p * 2).sum()).backward()
    assert p.grad.tolist() == [16.0] * 3
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [-1.0] * 3
