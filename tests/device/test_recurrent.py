"""RNN, LSTM and GRU: the CPU's bits, forward and backward, in every form that they have."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

D = "neuron"
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
FORMS = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
]
KINDS = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "projected lstm": (nn.LSTM, {"proj_size": 3}),
    "gru": (nn.GRU, {}),
}


def run(module, x, state, device):
    module, x = copy.deepcopy(module).to(device), x.to(device)
    packed = isinstance(x, PackedSequence)
    data = (x.data if packed else x).detach().clone().requires_grad_()
    state = None if state is None else [t.to(device).detach().requires_grad_() for t in state]
    hx = state if state is None or len(state) == 2 else state[0]
    out, last = module(x._replace(data=data) if packed else data, None if hx is None else hx)
    values = [out.data if packed else out, *(last if isinstance(last, tuple) else [last])]
    loss = sum(v.double().sin().sum() for v in values)
    grads = torch.autograd.grad(loss, [data, *module.parameters(), *(state or [])])
    return [t.detach().cpu() for t in (*values, *grads)]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_bits(kind, packed):
    cls, kwargs = KINDS[kind]
    torch.manual_seed(0)
    for form in FORMS:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            module = cls(6, 5, dtype=dtype, **form, **kwargs)
            rows = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
            batch = 4 if form.get("batch_first") else 7
            state = [torch.randn(rows, batch, kwargs.get("proj_size", 5), dtype=dtype)]
            if cls is nn.LSTM:
                state.append(torch.randn(rows, batch, 5, dtype=dtype))
            x = torch.randn(4, 7, 6, dtype=dtype)
            if packed:
                lengths = [4, 7, 1, 3] if form.get("batch_first") else [4, 2, 1, 3, 4, 4, 2]
                x = pack_padded_sequence(x, lengths, form.get("batch_first", False), False)
            given = state if dtype in (torch.float32, torch.bfloat16) else None
            cpu, mine = run(module, x, given, "cpu"), run(module, x, given, D)
            assert all(a.equal(b) for a, b in zip(cpu, mine, strict=True)), (form, dtype)


@pytest.mark.parametrize("cls", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_cells(cls):
    def twice(device):
        module, x = copy.deepcopy(cell).to(device), inputs.to(device).requires_grad_()
        state = module(x, module(x))
        values = list(state) if isinstance(state, tuple) else [state]
        leaves = [x, *module.parameters()]
        grads = torch.autograd.grad(sum(v.sin().sum() for v in values), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in grads), leaves)
        return [t.detach().cpu() for t in (*values, *grads, *second)]

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        torch.manual_seed(0)
        cell, inputs = cls(6, 5, dtype=dtype), torch.randn(3, 6, dtype=dtype)
        assert all(a.equal(b) for a, b in zip(twice("cpu"), twice(D), strict=True))


def test_without_gradients_and_twice_differentiated():
    torch.manual_seed(0)
    lstm, gru, x = nn.LSTM(6, 5), nn.GRU(6, 5), torch.randn(4, 2, 6)
    with torch.no_grad():
        assert copy.deepcopy(lstm).to(D)(x.to(D))[0].cpu().equal(lstm(x)[0])

    def second(device):
        module = copy.deepcopy(gru).to(device)
        leaf = x.to(device).requires_grad_()
        (first,) = torch.autograd.grad(module(leaf)[0].sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0].cpu()

    assert second("cpu").equal(second(D))


def test_autocast_computes_as_accelerators_do():
    lstm, x = nn.LSTM(6, 5).to(D), torch.randn(4, 2, 6, device=D)
    with torch.autocast(D, dtype=torch.bfloat16):
        assert lstm(x)[0].dtype == torch.bfloat16


def test_dropout_between_layers_is_the_devices():
    lstm, x = nn.LSTM(6, 5, num_layers=2, dropout=0.5).to(D), torch.randn(4, 2, 6, device=D)
    cpu = torch.get_rng_state()
    outputs = []
    for seed in (1, 1, 2):
        torch.neuron.manual_seed(seed)
        outputs.append(lstm(x)[0])
    assert outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[2])
    assert torch.get_rng_state().equal(cpu)


def test_wrong_input_is_told():
    lstm = nn.LSTM(6, 5).to(D)
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device"):
        state = torch.zeros(1, 2, 5)
        lstm(torch.randn(4, 2, 6, device=D), (state, state))
