"""Every algorithm x op x group of 2 to 64 ranks: proved, compiled to the interpreter's bits, priced to its bytes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.algorithms import algorithms_for, lookup
from collectives.compile import compile_programs
from collectives.cost import Pricer
from collectives.group import Group
from collectives.interpret import DTYPES, evaluate, interpret
from collectives.schedule import OPS, REDUCING
from collectives.verify import verify
from tests.collectives.cases import CLUSTERS, groups, inputs_of, suitable

FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def pairs_for(op, n):
    return tuple((r, (r + 1) % n) for r in range(n - 1)) if op == "permute" else ()


@MANY
@given(groups(), st.data())
def test_every_schedule_is_proved(group, data):
    root = data.draw(st.integers(0, group.size - 1))
    for op, algorithm in suitable(group):
        schedule = algorithm.build(op, group, 0 if op == "send" else root, pairs_for(op, group.size))
        flow = verify(schedule)
        programs = compile_programs(schedule, flow)
        assert len(programs) == (schedule.chunks if op in REDUCING else 0)
        for program in programs:
            assert sorted(c for c in program if c >= 0) == list(range(group.size))


def expected(op, inputs, rank, root):
    """What the op gives, for ops that add nothing."""
    n = len(inputs)
    if op == "all_gather" or (op == "gather" and rank == root):
        return np.concatenate(inputs)
    if op == "broadcast":
        return inputs[root]
    if op == "scatter":
        return inputs[root].reshape(n, -1)[rank]
    if op == "all_to_all":
        return np.concatenate([i.reshape(n, -1)[rank] for i in inputs])
    if op == "send" and rank == 1:
        return inputs[0]
    if op == "permute" and rank > 0:
        return inputs[rank - 1]
    return None


@FEW
@given(groups(most=20), st.sampled_from(sorted(DTYPES)), st.integers(0, 70), st.integers(0, 2**31), st.data())
def test_programs_and_hops_agree_bit_for_bit(group, dtype, numel, seed, data):
    n = group.size
    root = data.draw(st.integers(0, n - 1))
    for op, algorithm in suitable(group):
        at = 0 if op == "send" else root
        schedule = algorithm.build(op, group, at, pairs_for(op, n))
        inputs = inputs_of(op, n, numel, dtype, seed)
        run = interpret(schedule, inputs, dtype, group)
        if op in REDUCING:
            sums = evaluate(compile_programs(schedule), op, inputs, dtype)
            for rank, output in enumerate(run.outputs):
                if output is not None:
                    want = sums[rank if op == "reduce_scatter" else 0]
                    assert output.tobytes() == want.tobytes(), (op, algorithm.name, rank)
        else:
            for rank, output in enumerate(run.outputs):
                want = expected(op, inputs, rank, at)
                assert (output is None) == (want is None)
                assert output is None or output.tobytes() == want.tobytes(), (op, algorithm.name, rank)


@settings(MANY, max_examples=80)
@given(groups(), st.sampled_from(sorted(DTYPES)), st.integers(0, 300), st.integers(0, 2**31), st.data())
def test_one_of_them_on_up_to_64_ranks(group, dtype, numel, seed, data):
    op, algorithm = data.draw(st.sampled_from(list(suitable(group))))
    schedule = algorithm.build(op, group, 0, pairs_for(op, group.size))
    inputs = inputs_of(op, group.size, numel, dtype, seed)
    run = interpret(schedule, inputs, dtype, group)
    if op in REDUCING:
        sums = evaluate(compile_programs(schedule), op, inputs, dtype)
        for rank, output in enumerate(run.outputs):
            if output is not None:
                assert output.tobytes() == sums[rank if op == "reduce_scatter" else 0].tobytes()
    else:
        for rank, output in enumerate(run.outputs):
            want = expected(op, inputs, rank, 0)
            assert output is None if want is None else output.tobytes() == want.tobytes()
    whole = 1 if schedule.segments == 1 else group.size
    item = DTYPES[dtype].itemsize
    price = Pricer(schedule, group).price(numel * whole * item, itemsize=item)
    assert {i: int(b) for i, b in enumerate(price.bytes_by_link) if b} == {k: v for k, v in run.bytes_by_link.items() if v}


@FEW
@given(groups(most=24), st.integers(0, 300))
def test_bytes_priced_are_the_bytes_moved(group, numel):
    for op, algorithm in suitable(group):
        if op == "barrier" or (op == "all_to_all" and group.size > 24):
            continue
        schedule = algorithm.build(op, group, 0, pairs_for(op, group.size))
        run = interpret(schedule, inputs_of(op, group.size, numel, "bf16", 1), "bf16", group)
        whole = 1 if schedule.segments == 1 else group.size
        price = Pricer(schedule, group).price(numel * whole * 2, itemsize=2)
        links = np.zeros(len(price.bytes_by_link), np.int64)
        for link, moved in run.bytes_by_link.items():
            links[link] = moved
        assert (links == price.bytes_by_link).all(), (op, algorithm.name)
        for (src, _), moved in run.bytes_by_pair.items():
            price.sent_bytes[src] -= moved
        assert not price.sent_bytes.any()
        assert price.time_ns >= group.cluster.parameters["base_ns"]


@pytest.mark.parametrize("op", OPS)
def test_no_algorithm_is_left_out(op):
    """Each is on some group of this list, so that none escapes the properties by refusing everything."""
    shapes = [("trn2", range(64)), ("trn2", range(2)), ("3 x trn2", [0, 1, 64, 65, 128, 129]), ("4 x trn1", range(128))]
    shapes += [("trn2 LNC 1", range(16))]
    left = {a.name for a in algorithms_for(op)}
    for cluster, ranks in shapes:
        group = Group(CLUSTERS[cluster], ranks)
        for other, algorithm in suitable(group):
            if other == op:
                verify(algorithm.build(op, group, 0, pairs_for(op, group.size)))
                left.discard(algorithm.name)
    assert not left


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("name", ["ring", "kangaring", "mesh", "rdh", "mesh_single_step"])
def test_a_full_node(name, dtype):
    group = Group(CLUSTERS["trn2"], range(64))
    schedule = lookup(name, "all_reduce").build("all_reduce", group)
    inputs = inputs_of("all_reduce", 64, 301, dtype, 7)
    want = evaluate(compile_programs(schedule), "all_reduce", inputs, dtype)[0]
    assert all(o.tobytes() == want.tobytes() for o in interpret(schedule, inputs, dtype).outputs)
