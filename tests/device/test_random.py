import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

D = "neuron"


def draws():
    x = torch.rand(100, device=D)
    return [
        torch.randn(7, device=D),
        torch.randperm(9, device=D),
        torch.bernoulli(x),
        nn.functional.dropout(x, 0.5),
        torch.rrelu(x - 0.5, training=True),
        torch.multinomial(x, 5),
        torch.empty(5, device=D).exponential_(),
        torch.normal(x, 1.0),
        torch.poisson(x),
    ]


def test_same_seed_same_numbers_and_the_cpu_is_left_alone():
    torch.manual_seed(5)
    cpu = torch.get_rng_state()
    first = draws()
    assert torch.get_rng_state().equal(cpu)
    torch.neuron.manual_seed(5)
    again = draws()
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not torch.randn(7, device=D).equal(first[0])


def test_first_draw_equals_the_cpu():
    torch.manual_seed(5)
    on_cpu = torch.randn(100)
    assert torch.randn(100, device=D).cpu().equal(on_cpu)


def test_state_is_seed_and_offset():
    torch.neuron.manual_seed(3)
    state = torch.neuron.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    assert state.view(torch.int64).tolist() == [3, 0]
    a = torch.randn(5, device=D)
    assert torch.neuron.get_rng_state().view(torch.int64).tolist() == [3, 8]
    torch.neuron.set_rng_state(state)
    assert torch.randn(5, device=D).equal(a)
    assert torch.neuron.initial_seed() == 3
    with pytest.raises(ValueError, match="16 bytes"):
        torch.neuron.set_rng_state(torch.zeros(8, dtype=torch.uint8))


def test_other_offsets_draw_other_numbers():
    seen = set()
    for offset in range(0, 64, 4):
        torch.neuron.set_rng_state(torch.tensor([1, offset]).view(torch.uint8))
        seen.add(torch.randn(1, device=D).item())
    assert len(seen) == 16


def test_all_devices():
    torch.neuron.manual_seed_all(9)
    assert torch.randn(4, device="neuron:2").equal(torch.randn(4, device="neuron:7").to("neuron:2"))
    states = torch.neuron.get_rng_state_all()
    assert len(states) == torch.neuron.device_count()
    a = torch.randn(4, device="neuron:2")
    torch.neuron.set_rng_state_all(states)
    assert torch.randn(4, device="neuron:2").equal(a)
    torch.neuron.seed_all()


def test_generators():
    g = torch.Generator(device=D).manual_seed(3)
    a = torch.randn(5, generator=g, device=D)
    twin = g.clone_state()
    assert torch.randn(5, generator=g, device=D).equal(torch.randn(5, generator=twin, device=D))
    g.manual_seed(3)
    assert torch.randn(5, generator=g, device=D).equal(a)
    with pytest.raises(RuntimeError, match="Expected a 'neuron' device type for generator"):
        torch.randn(5, device=D).normal_(generator=torch.Generator())


def test_fork_rng():
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=D):
        torch.manual_seed(2)
        torch.randn(3, device=D)
    a = torch.randn(3, device=D)
    torch.manual_seed(1)
    assert torch.randn(3, device=D).equal(a)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_keeps_dropout(use_reentrant):
    layer = nn.Dropout(0.5)

    def f(t):
        return layer(t) * t

    grads = []
    for run in (f, lambda t: checkpoint(f, t, use_reentrant=use_reentrant)):
        y = torch.ones(100, device=D, requires_grad=True)
        torch.manual_seed(0)
        run(y).sum().backward()
        grads.append(y.grad)
    assert grads[0].equal(grads[1])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_of_fake_tensors(use_reentrant):
    """It restores the generator's state, which is real, under a mode in which copies are not."""
    torch.neuron.manual_seed(3)
    before = torch.neuron.get_rng_state()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(4, 4, device="neuron", requires_grad=True)
        y = checkpoint(lambda t: nn.functional.dropout(t).exp(), x, use_reentrant=use_reentrant)
        y.sum().backward()
        assert x.grad.shape == (4, 4)
    assert torch.neuron.get_rng_state().equal(before)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_random_values_of_compressed_tensors(layout):
    x = torch.eye(4).to_sparse(layout=layout)
    drawn = []
    for device in ("cpu", D):
        torch.manual_seed(5)
        drawn.append(torch.randn_like(x.to(device)))
    assert drawn[1].layout == layout and drawn[1].device.type == D
    assert drawn[1].cpu().values().shape == drawn[0].values().shape


def test_states_that_cannot_be_set():
    before = torch.neuron.get_rng_state()
    with FakeTensorMode():
        fake = torch.zeros(16, dtype=torch.uint8)
    with pytest.raises(ValueError, match="has no memory"):
        torch.neuron.set_rng_state(fake)
    with pytest.raises(ValueError, match="16 bytes"):
        torch.neuron.set_rng_state(before[:8])
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.neuron.set_rng_state(before.float())
    torch.neuron.set_rng_state(before.to("neuron"))
    assert torch.neuron.get_rng_state().equal(before)


def test_a_model_gets_the_cpus_weights():
    """Draw after draw, as long as each takes one word of the CPU's generator a value."""

    def make(device):
        torch.manual_seed(11)
        with torch.device(device):
            model = nn.Sequential(nn.Linear(32, 64), nn.Conv2d(16, 8, 3), nn.Embedding(24, 16))
            return [*model.parameters(), torch.rand(5, 4), torch.randn(64, dtype=torch.bfloat16)]

    for mine, cpus in zip(make(D), make("cpu"), strict=True):
        assert mine.cpu().equal(cpus)


@given(
    st.lists(st.tuples(st.sampled_from(["rand", "randn"]), st.integers(1, 40)), max_size=8),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=30, deadline=None)
def test_pieces_are_those_of_the_whole(draws, seed):
    """A tensor drawn at its own offset is what the whole would have there; marks and jumps do not matter."""
    generator = torch.Generator(D).manual_seed(seed)
    whole, offset = [], 0
    for name, sixteens in draws:
        whole.append(
            (name, offset, getattr(torch, name)(16 * sixteens, generator=generator, device=D))
        )
        offset += 16 * sixteens
    other = torch.Generator(D).manual_seed(seed)
    for name, start, values in reversed(whole):
        half = values.numel() // 32 * 16
        if half:
            other.set_offset(start + half)
            again = getattr(torch, name)(values.numel() - half, generator=other, device=D)
            assert again.equal(values[half:])


def test_far_offsets():
    generator = torch.Generator(D).manual_seed(1)
    seen = []
    for offset in (5 << 20, 0, 1 << 40, 9 << 20, 5 << 20, 1 << 40):
        generator.set_offset(offset)
        seen.append(torch.rand(16, generator=generator, device=D))
    assert seen[0].equal(seen[4]) and seen[2].equal(seen[5])
    assert not seen[0].equal(seen[3]) and not seen[0].equal(seen[2])
