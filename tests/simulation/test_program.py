"""What an operator costs is read off the call: PyTorch's flops, the tensors' bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from neuron_dist.simulation.architecture import Run, Shape
from neuron_dist.simulation.program import Exchange, Operator, Program, Recorder, exchange
from neuron_dist.simulation.transformer import embedding, head, layer


def meta(*shape, dtype=torch.bfloat16, **options):
    return torch.empty(*shape, dtype=dtype, device="meta", **options)


def record(function, *args):
    with Recorder() as recorder:
        function(*args)
    return recorder.program.operators


A, B = meta(64, 32), meta(32, 16)
HEADS = meta(1, 2, 64, 8)


@pytest.mark.parametrize(
    "call, flops, nbytes",
    [
        (lambda: A @ B, 2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        (lambda: A + A, 0, 2 * (1 + 1) * 64 * 32),  # one tensor, read once
        (lambda: A + A.clone(), 0, 2 * 3 * 64 * 32),
        (lambda: A.float(), 0, (2 + 4) * 64 * 32),
        (lambda: A.add_(1), 0, 2 * 2 * 64 * 32),
        (lambda: A.copy_(A.clone()), 0, 2 * 2 * 64 * 32),
        (lambda: A.zero_(), 0, 2 * 64 * 32),
        (lambda: torch.zeros_like(A), 0, 2 * 64 * 32),
        (lambda: torch.mul(A, 2, out=A.clone()), 0, 2 * 2 * 64 * 32),
        (lambda: B.clone().expand(5, 32, 16) + 1, 0, 2 * (1 + 5) * 32 * 16),
        (lambda: meta(64, 1).expand(64, 32) * A, 0, 2 * (64 + 2 * 64 * 32)),
        (lambda: A.sum(), 0, 2 * (64 * 32 + 1)),
        (lambda: F.embedding(meta(3, dtype=torch.int64), A), 0, 3 * 8 + 2 * 2 * 3 * 32),
    ],
)
def test_flops_and_bytes_of_the_last_operator(call, flops, nbytes):
    last = record(call)[-1]
    assert (last.flops, last.nbytes) == (flops, nbytes)


@pytest.mark.parametrize(
    "call",
    [
        lambda: A.t(),
        lambda: A.view(-1)[3:9],
        lambda: A.detach(),
        lambda: torch.ops.aten._unsafe_view(A, [32, 64]),
        lambda: torch.empty_like(A),
        lambda: torch.ones(4) + 1,  # the host's
    ],
)
def test_what_moves_nothing(call):
    assert record(call) == []


def test_attention_says_whether_it_is_causal():
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    for causal in (False, True):
        (made,) = record(attention, HEADS, HEADS, HEADS, None, False, 0.0, causal)
        assert made.causal is causal
        assert made.flops == 2 * 2 * 2 * 64 * 64 * 8
    assert Operator("mm", 0, 0, "float32").causal is False


def test_the_backward_pass_is_recorded_too():
    x, w = meta(128, 64, requires_grad=True), meta(64, 64, requires_grad=True)
    with Recorder() as recorder:
        (x @ w).sum().backward()
    assert recorder.program.flops == 3 * 2 * 128 * 64 * 64
    assert [o.dtype for o in recorder.program.operators if o.flops] == ["bfloat16"] * 3


def test_collectives_belong_to_the_innermost_recorder():
    exchange("all_reduce", 1)
    with Recorder() as outer:
        exchange("all_gather", 2)
        with Recorder() as inner:
            exchange("reduce_scatter", 3)
    assert outer.program.exchanges == [Exchange("all_gather", 2)]
    assert inner.program.exchanges == [Exchange("reduce_scatter", 3)]


def test_programs_add_up_and_repeat():
    one = Program([Operator("mm", 4, 2, "float32")], [Exchange("all_gather", 8)])
    both = one + one * 2
    assert (both.flops, both.nbytes, both.exchanges) == (12, 6, [Exchange("all_gather", 8)] * 3)


# --- transformers -----------------------------------------------------------------------------------------------------

shapes = st.builds(
    lambda unit, heads, groups, ffn, gated, rms, dropout: Shape(
        layers=2,
        hidden=8 * unit * heads * groups,
        heads=heads * groups,
        kv_heads=heads,
        ffn=4 * ffn,
        vocab=40,
        gated=gated,
        rms=rms,
        dropout=dropout,
    ),
    st.integers(1, 3),
    st.sampled_from([4, 8]),
    st.integers(1, 3),
    st.integers(1, 50),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.1]),
)


def weights(shape):
    """Elements of a layer's matrices."""
    kv = shape.hidden // shape.heads * shape.kv_heads
    return shape.hidden * (2 * shape.hidden + 2 * kv + (3 if shape.gated else 2) * shape.ffn)


@settings(max_examples=20)
@given(shapes, st.integers(1, 3))
def test_a_layer_has_the_textbooks_flops(shape, batch):
    s = 16
    made = layer(shape, Run(s, batch, flash=False))
    norms = 2 * shape.hidden * (1 if shape.rms else 2)
    assert made.parameters == weights(shape) + norms
    assert made.program.flops == batch * (6 * s * weights(shape) + 12 * s * s * shape.hidden)
    assert made.program.exchanges == []


@settings(max_examples=20)
@given(shapes, st.sampled_from([2, 4]), st.booleans())
def test_tensor_parallel_ranks_share_the_flops(shape, tp, flash):
    whole = layer(shape, Run(16, flash=flash)).program
    part = layer(shape, Run(16, tp=tp, flash=flash)).program
    assert part.flops * tp == whole.flops


def test_flops_are_those_of_pytorchs_counter():
    shape = Shape(2, 64, 4, 2, 128, 96, rms=False, bias=True, dropout=0.1)
    for piece in (layer, head):
        with FlopCounterMode(display=False) as counter:
            made = piece(shape, Run(32, flash=False))
        assert counter.get_total_flops() == made.program.flops > 0
    assert embedding(shape, Run(32)).program.flops == 0


HIDDEN = 16 * 64 * 2
"""Bytes of all hidden states of a sequence."""


@pytest.mark.parametrize(
    "sequence_parallel, recompute, expected",
    [
        (True, [], {"all_gather": 6, "reduce_scatter": 4}),
        # a checkpoint stops early: what the last row block sends is not needed again
        (True, ["layer"], {"all_gather": 8, "reduce_scatter": 5}),
        (True, ["mlp"], {"all_gather": 7, "reduce_scatter": 4}),
        (True, ["attention", "activation"], {"all_gather": 6, "reduce_scatter": 4}),
        (False, [], {"all_reduce": 4}),
        (False, ["layer"], {"all_reduce": 5}),
    ],
)
def test_collectives_of_a_layer(sequence_parallel, recompute, expected):
    run = Run(16, tp=4, sequence_parallel=sequence_parallel, recompute=frozenset(recompute))
    exchanges = layer(Shape(2, 64, 4, 4, 128, 96), run).program.exchanges
    assert {x.nbytes for x in exchanges} == {HIDDEN}
    assert {op: sum(x.op == op for x in exchanges) for op in expected} == expected
    assert len(exchanges) == sum(expected.values())


@pytest.mark.parametrize(
    "recompute, again",
    [
        ("attention", 2 * 2 * 16 * 16 * 64),
        ("activation", 0),
        ("mlp", 2 * 16 * 3 * 64 * 128),
        ("layer", 2 * 16 * (4 * 64 * 64 + 3 * 64 * 128) + 2 * 2 * 16 * 16 * 64),
    ],
)
def test_recomputation_costs_what_it_runs_again(recompute, again):
    shape = Shape(2, 64, 4, 4, 128, 96)
    usual, more = (
        layer(shape, Run(16, flash=False, recompute=frozenset(r))).program
        for r in ([], [recompute])
    )
    # nor is its last matmul
    last = {"mlp": 2 * 16 * 64 * 128, "layer": 2 * 16 * 64 * 128, "attention": 2 * 16 * 16 * 64}
    assert more.flops - usual.flops == again - last.get(recompute, 0)
    assert more.nbytes > usual.nbytes


def test_key_and_value_heads_are_repeated_for_more_ranks():
    shape = Shape(2, 64, 8, 2, 128, 96)
    per_head = 64 * 8
    two, eight = (layer(shape, Run(16, tp=tp)) for tp in (2, 8))
    assert two.parameters * 2 == weights(shape) + 2 * 2 * 64
    assert eight.parameters * 8 == weights(shape) + 2 * (8 - 2) * per_head + 8 * 2 * 64


def test_a_padded_vocabulary():
    shape = Shape(2, 64, 4, 4, 128, 100, vocab_multiple=16)
    assert embedding(shape, Run(16, tp=2)).parameters == 64 * 128 // 2


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Shape(2, 64, 5, 5, 1, 1), r"heads is 5, expected a divisor of hidden \(64\)"),
        (lambda: Shape(2, 64, 8, 3, 1, 1), r"kv_heads is 3, expected a divisor of heads \(8\)"),
        (lambda: Run(16, tp=3), r"sequence is 16, expected a multiple of tp \(3\)"),
        (
            lambda: Run(16, recompute=frozenset({"atention"})),
            "recompute names 'atention'; did you mean 'attention'",
        ),
        (
            lambda: layer(Shape(2, 64, 8, 8, 100, 1), Run(16, tp=8)),
            r"ffn is 100, expected a multiple of tp \(8\)",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
