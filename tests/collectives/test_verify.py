"""Wrong schedules are caught, and the message says which chunk, which rank and which contribution."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives.algorithms import RING, Half, Halves, Single, lookup, register, unregister
from collectives.compile import compile_programs
from collectives.group import Group
from collectives.interpret import interpret
from collectives.planner import plan
from collectives.schedule import COLUMNS, REDUCING, Rows, Schedule, ScheduleError
from collectives.topology import load_cluster
from collectives.verify import verify
from tests.collectives.cases import groups, inputs_of, suitable

CLUSTER = load_cluster()


def ring(op="all_reduce", ranks=8):
    return lookup("ring", op).build(op, Group(CLUSTER, range(ranks)))


def without(schedule, index):
    rows = schedule.rows.take(np.delete(np.arange(len(schedule.rows)), index))
    return Schedule(schedule.op, schedule.algorithm, schedule.ranks, schedule.chunks, rows, schedule.root)


def test_a_lost_transfer_is_named():
    schedule = ring()
    first = schedule.rows
    with pytest.raises(ScheduleError, match=r"rank \d chunk \d+: lacks the contribution of rank \d") as error:
        verify(without(schedule, 0))
    chunk = int(first.src_slot[0])
    assert f"chunk {chunk}:" in str(error.value)
    assert f"lacks the contribution of rank {first.src[0]}" in str(error.value)


def test_a_repeated_contribution_is_named():
    rows = Rows.of([0, 1, 2], [0, 0, 1], [1, 1, 0], 0, reduce=[True, True, False])
    with pytest.raises(ScheduleError, match=r"rank 0 chunk 0: repeats that of rank 0 \(2 times\)"):
        verify(Schedule("all_reduce", "wrong", 2, 1, rows))


def test_lacking_and_repeated_of_equal_number():
    """As many leaves as ranks, but not each once: only counting them shows it."""
    rows = Rows.of([0, 1, 2, 2, 2], [0, 0, 1, 1, 1], [1, 1, 0, 2, 3], 0, reduce=[True, True, False, False, False])
    with pytest.raises(ScheduleError, match=r"lacks the contribution of rank 2, 3 and repeats that of rank 0"):
        verify(Schedule("all_reduce", "wrong", 4, 1, Rows.join([rows, Rows.of(1, [0], 1, 0, reduce=True)])))


@pytest.mark.parametrize("seed", range(40))
def test_any_lost_transfer_of_a_ring_is_caught(seed):
    schedule = ring(("all_reduce", "reduce_scatter", "all_gather")[seed % 3])
    index = np.random.default_rng(seed).integers(len(schedule.rows))
    with pytest.raises(ScheduleError):
        verify(without(schedule, index))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(groups(most=9), st.data())
def test_what_is_proved_is_right(group, data):
    """A schedule with one transfer changed at random: whenever the proof lets it pass, the hops give the sum."""
    op, algorithm = data.draw(st.sampled_from([s for s in suitable(group) if s[0] in REDUCING]))
    schedule = algorithm.build(op, group)
    index = data.draw(st.integers(0, len(schedule.rows) - 1))
    column = data.draw(st.sampled_from(COLUMNS[:-1]))
    changed = getattr(schedule.rows, column).copy()
    limit = {"src": group.size, "dst": group.size, "reduce": 2, "count": 3}.get(column, int(changed.max()) + 1)
    changed[index] = data.draw(st.integers(0, limit - 1))
    wrong = Schedule(op, algorithm.name, group.size, schedule.chunks, replace(schedule.rows, **{column: changed}),
                     slot_chunk=schedule.slot_chunk)  # fmt: skip
    try:
        compile_programs(wrong, verify(wrong))
    except ScheduleError:
        return
    inputs = inputs_of(op, group.size, 2 * schedule.chunks, "int32", 5)
    sums = np.sum(inputs, axis=0, dtype=np.int32)
    for rank, output in enumerate(interpret(wrong, inputs, "int32").outputs):
        if output is not None:
            want = sums.reshape(group.size, -1)[rank] if op == "reduce_scatter" else sums
            assert (output == want).all()


def test_a_chunk_that_is_not_there_yet():
    rows = Rows.of([0, 1], [1, 0], [2, 1], 0)
    with pytest.raises(ScheduleError, match="step 0: the transfer from rank 1 to rank 2 sends chunk 0, which rank 1"):
        verify(Schedule("broadcast", "early", 3, 1, rows))
    with pytest.raises(ScheduleError, match="adds to chunk 0, which rank 1 does not hold"):
        verify(Schedule("broadcast", "early", 3, 1, Rows.of(0, [0], [1], 0, reduce=True)))


@pytest.mark.parametrize("reduce", [[False, False], [False, True], [True, False]])
def test_two_writes_of_one_place_in_one_step(reduce):
    rows = Rows.of(0, [1, 2], 0, 0, reduce=reduce)
    with pytest.raises(ScheduleError, match="step 0: two transfers write chunk 0 on rank 0"):
        verify(Schedule("all_reduce", "clash", 3, 1, rows))


def test_ranges_that_overlap_in_part():
    rows = Rows.of(0, [0, 0], 1, [0, 1], count=2)
    with pytest.raises(ScheduleError, match="two transfers write chunk"):
        verify(Schedule("broadcast", "clash", 2, 3, rows))


def test_wrong_owner_and_never_arrives():
    rows = Rows.of([0, 1, 1], [0, 1, 1], [1, 0, 2], [0, 1, 1])
    with pytest.raises(ScheduleError, match="rank 0 chunk 2: never arrives"):
        verify(Schedule("all_gather", "short", 3, 3, rows))


def test_one_chunk_in_anothers_place():
    with pytest.raises(ScheduleError, match="sends chunk 0 into the place of chunk 1 on rank 1"):
        verify(Schedule("broadcast", "mixed", 2, 2, Rows.of(0, [0], 1, 0, to=1)))


@pytest.mark.parametrize("column", ["src", "dst", "slot"])
def test_out_of_range(column):
    values = {"src": 0, "dst": 1, "slot": 0} | {column: 9}
    with pytest.raises(ScheduleError, match="out of range"):
        verify(Schedule("broadcast", "off", 2, 1, Rows.of(0, [values["src"]], values["dst"], values["slot"])))


def test_destinations_that_add_in_different_orders_are_refused():
    """Each of three ranks adds what it receives to its own: all have the sum, but not the same bits."""
    src, dst = np.array([(s, d) for s in range(3) for d in range(3) if s != d]).T
    schedule = Schedule("all_reduce", "own first", 3, 1, Rows.of(0, src, dst, 0, reduce=True))
    with pytest.raises(ScheduleError, match=r"ranks 0 and 1 add chunk 0 in different orders: \[0, 1, -1, 2, -1\]"):
        compile_programs(schedule)


def test_a_users_algorithm_is_proved_before_use():
    def everyone(group, *, reduce):
        src, dst = np.array([(s, d) for s in range(group.size) for d in range(group.size) if s != d]).T
        return Half(Rows.of(0, src, dst, dst if reduce else src, reduce=reduce), steps=1, pieces=1)

    mine = Halves("mine", lambda g: everyone(g, reduce=True), lambda g: everyone(g, reduce=False))
    register(mine)
    try:
        with pytest.raises(ValueError, match="there is an algorithm 'mine'"):
            register(mine)
        made = plan("all_reduce", 4096, range(6), CLUSTER, algorithm="mine")
        assert made.algorithm == "mine" and made.steps == 2 and len(made.programs) == 6
    finally:
        unregister("mine")
    broken = Single("mine", frozenset({"all_reduce"}), lambda op, group, root, pairs: without(
        RING.build(op, group), 3))  # fmt: skip
    register(broken)
    try:
        with pytest.raises(ScheduleError, match="lacks the contribution of rank"):
            plan("all_reduce", 4096, range(6), CLUSTER, algorithm="mine")
    finally:
        unregister("mine")


def test_unknown_names():
    with pytest.raises(ScheduleError, match="unknown algorithm 'rign'; did you mean 'ring'"):
        plan("all_reduce", 4, range(4), CLUSTER, algorithm="rign")
    with pytest.raises(ScheduleError, match="'kangaring' has no all_to_all"):
        plan("all_to_all", 4, range(4), CLUSTER, algorithm="kangaring")
    with pytest.raises(ScheduleError, match="unknown op 'allreduce'"):
        plan("allreduce", 4, range(4), CLUSTER)
