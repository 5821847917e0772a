"""torch.compile on neuron tensors: every backend, dynamic shapes, what is told and refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neuron_dist.fidelity import FidelityWarning

D = "neuron"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.neuron.reset_dynamo_metrics()


def step(x, w):
    return F.layer_norm((x @ w).relu(), (3,)).sum() + torch.arange(3, device=x.device).sum()


def run(fn, *args):
    leaves = [a.detach().clone().requires_grad_() for a in args]
    out = fn(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves)]


def inputs(device=D):
    torch.manual_seed(0)
    return torch.randn(2, 4).to(device), torch.randn(4, 3).to(device)


@pytest.mark.parametrize("backend", ["neuron", "inductor", "aot_eager", "eager"])
def test_bits_are_those_of_the_eager_function(backend):
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    pairs = zip(run(compiled, *inputs()), run(step, *inputs()), strict=True)
    assert all(a.device.type == D and a.equal(b) for a, b in pairs)
    # inductor hands its graph over, the debugging backends do not
    assert bool(torch.neuron.get_dynamo_metrics()) == (backend in ("neuron", "inductor"))


def test_it_is_listed_and_dynamo_knows_the_device():
    from torch._dynamo.device_interface import get_interface_for_device

    assert D in torch._dynamo.list_backends()
    interface = get_interface_for_device(D)
    assert interface.current_device() == torch.neuron.current_device()
    assert interface.maybe_exchange_device(-1) == 0
    assert interface.exchange_device(1) == 0
    assert interface.exchange_device(0) == 1
    assert interface.get_raw_stream(0) == torch.neuron.current_stream().stream_id


def test_metrics():
    run(torch.compile(step, backend=D, options={"model_name": "tiny"}), *inputs())
    metrics = torch.neuron.get_dynamo_metrics()
    assert list(metrics) == ["tiny.forward", "tiny.backward"]
    forward = metrics["tiny.forward"]
    assert forward["graph_id"] == 0 and forward["node_count"] > 3 and not forward["has_collectives"]
    assert 0 < forward["compile_time_s"] <= metrics["tiny.backward"]["compile_time_s"]
    with torch.no_grad():
        torch.compile(lambda x: x + 1, backend=D)(inputs()[0])
    assert list(torch.neuron.get_dynamo_metrics())[-1] == "graph_1.inference"
    torch.neuron.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics() == {}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.norm(x)  # writes to its buffers
        return self.drop(self.linear(x)).mul_(2)


def test_training_with_buffers_dropout_and_in_place_writes():
    def train(compiled):
        torch.manual_seed(3)
        model = Block().to(D)
        forward = torch.compile(model, backend=D) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(4)
        for _ in range(3):
            optimizer.zero_grad()
            forward(torch.randn(4, 8, device=D)).square().mean().backward()
            optimizer.step()
        return [*model.parameters(), *model.buffers()]

    for mine, eager in zip(train(True), train(False), strict=True):
        assert mine.equal(eager)


def test_shapes_may_change_which_is_told():
    compiled = torch.compile(lambda x: x.sin().view(-1, 2).sum(0), backend=D, dynamic=True)
    with pytest.warns(FidelityWarning, match="refuses torch.compile of shapes"):
        compiled(torch.randn(2, 4, device=D))
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4, device=D)
        assert compiled(x).equal(x.sin().view(-1, 2).sum(0))
    assert len(torch.neuron.get_dynamo_metrics()) == 1


def test_autocast_and_streams():
    def f(x, w):
        with torch.autocast(D, dtype=torch.bfloat16):
            return (x @ w).float()

    assert torch.compile(f, backend=D, fullgraph=True)(*inputs()).equal(f(*inputs()))


def test_modes_are_told():
    with pytest.warns(UserWarning, match="does not support mode='reduce-overhead'"):
        torch.compile(step, backend=D, mode="reduce-overhead")(*inputs())
    with pytest.warns(UserWarning, match=r"leaves out .*max_autotune"):
        torch.compile(step, mode="max-autotune")(*inputs())


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"model_nam": "a"}, ValueError, "Did you mean 'model_name'"),
        ({"model_name": 3}, TypeError, "must be str, got 3"),
    ],
)
def test_options_are_checked(options, error, match):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=match) as raised:
        torch.compile(step, backend=D, options=options)(*inputs())
    assert isinstance(raised.value.inner_exception, error)


def test_graphs_of_the_cpu():
    with pytest.raises(
        Exception, match=r"all tensors of the function are on cpu.*\.to\('neuron'\)"
    ):
        torch.compile(step, backend=D)(*inputs("cpu"))


def test_aot_inductor_is_refused():
    program = torch.export.export(nn.Linear(4, 3).to(D), (inputs()[0],))
    with pytest.raises(NotImplementedError, match=r"torch\.export\.save"):
        torch._inductor.aoti_compile_and_package(program)
