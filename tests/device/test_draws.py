"""Random operators that draw by place: pieces of the whole, right distributions, on one rank and several."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from neuron_dist.testing import run_ranks

D = "neuron"


DRAWS = {
    "bernoulli_": lambda x, g: x.bernoulli_(0.3, generator=g),
    "bernoulli_ of chances": lambda x, g: x.bernoulli_(torch.full_like(x, 0.3), generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(torch.full_like(x, 0.3), generator=g),
    "random_": lambda x, g: x.random_(generator=g),
    "random_ to": lambda x, g: x.random_(1000, generator=g),
    "random_ from": lambda x, g: x.random_(-5, 6, generator=g),
    "random_ of int64": lambda x, g: x.long().random_(0, 2**40, generator=g),
    "exponential_": lambda x, g: x.exponential_(2, generator=g),
    "geometric_": lambda x, g: x.geometric_(0.3, generator=g),
    "cauchy_": lambda x, g: x.cauchy_(generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_pieces_are_those_of_the_whole(name):
    draw = DRAWS[name]
    generator = torch.Generator(D).manual_seed(2**63 + 5)
    generator.set_offset(1 << 34)
    whole = draw(torch.zeros(1000, device=D), generator)
    assert generator.get_offset() == (1 << 34) + 1000
    for start in (0, 4, 360, 996):
        generator.set_offset((1 << 34) + start)
        assert draw(torch.zeros(1000 - start, device=D), generator).equal(whole[start:])
    generator.set_offset(1 << 34)
    rows = draw(torch.zeros(20, 50, device=D).t(), generator)  # logical order, whatever the strides
    assert rows.reshape(-1).equal(whole)
    other = draw(torch.zeros(1000, device=D), torch.Generator(D).manual_seed(7))
    assert not other.equal(whole)


def test_distributions():
    torch.manual_seed(0)
    n = 200_000

    def sample(draw, dtype=torch.float32):
        return draw(torch.empty(n, dtype=dtype, device=D)).double()

    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        assert abs(sample(lambda x: x.bernoulli_(0.3), dtype).mean() - 0.3) < 0.01
    assert (
        sample(lambda x: x.bernoulli_(1.0)).min() == 1
        and sample(lambda x: x.bernoulli_(0.0)).max() == 0
    )
    assert abs(sample(lambda x: x.exponential_(2)).mean() - 0.5) < 0.01
    assert abs(sample(lambda x: x.geometric_(0.25)).mean() - 4) < 0.1
    assert abs(sample(lambda x: x.cauchy_()).median()) < 0.02
    integers = sample(lambda x: x.random_(-3, 5), torch.int32)
    assert integers.min() == -3 and integers.max() == 4 and abs(integers.mean() - 0.5) < 0.02
    chances = torch.linspace(0, 1, n, device=D)
    halves = torch.bernoulli(chances).chunk(2)
    assert abs(halves[0].mean() - 0.25) < 0.01 and abs(halves[1].mean() - 0.75) < 0.01
    # neighbours, and draws one after the other, have nothing in common
    x, y = (torch.empty(n, device=D).bernoulli_(0.5) * 2 - 1 for _ in range(2))
    assert abs((x[1:] * x[:-1]).mean()) < 0.01 and abs((x * y).mean()) < 0.01


def test_dropout():
    torch.manual_seed(0)
    x = torch.ones(100, 100, device=D, requires_grad=True)
    y = nn.functional.dropout(x, 0.25)
    kept = y != 0
    assert abs(kept.double().mean() - 0.75) < 0.02 and y[kept].eq(1 / 0.75).all()
    y.sum().backward()
    assert x.grad.equal(y.detach())
    assert nn.functional.dropout(x, 1.0).eq(0).all() and nn.functional.dropout(x, 0.0).equal(x)
    assert nn.functional.dropout(x, 0.5, training=False).equal(x)
    in_place = torch.ones(9, device=D)
    assert nn.functional.dropout(in_place, 0.5, inplace=True) is in_place
    assert nn.functional.dropout(torch.empty(0, 3, device=D), 0.5).shape == (0, 3)


def test_arguments_are_checked():
    x = torch.ones(3, device=D)
    for draw, match in [
        (lambda: x.bernoulli_(1.5), r"p to be in \[0, 1\]"),
        (lambda: x.bernoulli_(x + 1), r"p to be in \[0, 1\]"),
        (lambda: x.exponential_(-1), "lambda > 0"),
        (lambda: x.random_(5, 5), "'from' to be less than 'to'"),
    ]:
        with pytest.raises(RuntimeError, match=match):
            draw()


def sharded(placements, mesh_shape):
    mesh = init_device_mesh(D, mesh_shape)
    torch.manual_seed(3)
    x = distribute_tensor(torch.ones(16, 24, device=D), mesh, placements).requires_grad_()
    block = lambda t: nn.functional.dropout(t * 2, 0.4)  # noqa: E731
    y = block(x)
    z = checkpoint(block, y, use_reentrant=False)
    z.sum().backward()
    kept = [y, z, x.grad, torch.bernoulli(x.detach() * 0.5), torch.randint_like(x.detach(), 100)]
    return [t.full_tensor().tolist() for t in kept]


@pytest.mark.parametrize(
    ("mesh", "placements"), [((2,), [Shard(0)]), ((2, 2), [Replicate(), Shard(0)])]
)
def test_dropout_of_a_dtensor_is_the_same_on_one_rank_and_several(mesh, placements):
    (alone,) = run_ranks(1, sharded, placements, (1,) * len(mesh))
    for several in run_ranks(2 * len(mesh), sharded, placements, mesh):
        assert several == alone
    y, z, gradient = alone[:3]
    # The checkpoint drew the same mask again: where both kept a value, its gradient is both factors.
    flat = list(zip(sum(y, []), sum(z, []), sum(gradient, []), strict=True))  # noqa: RUF017
    assert all((g != 0) == (b != 0) for _, b, g in flat)
    assert any(a != 0 and b == 0 for a, b, _ in flat)
