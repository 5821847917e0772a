"""The replay without contention is the online clock, to the nanosecond; with it, links are shared."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import load_cluster, plan
from collectives.cost import Pricer
from collectives.group import Group
from collectives.topology import topology_of
from neuron_dist.simulation.intervals import split, union
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.trace import Kind
from tests.simulation.online import Online, rounded
from tests.simulation.scripts import WORLD, actions, run

FIELDS = ("kind", "name", "start_ns", "end_ns", "stream", "group", "a", "flag", "flag2", "e")


def same(recorded, replayed):
    """Whether all records are there with the same times; algorithms by their names."""
    for old, new in zip(recorded, replayed, strict=True):
        assert len(old.records) == len(new.records)
        for field in FIELDS:
            wrong = np.flatnonzero(old.records[field] != new.records[field])
            assert not len(wrong), (old.rank, field, old.records[wrong[0]], new.records[wrong[0]])
        for a, b in zip(old.of(Kind.COLLECTIVE), new.of(Kind.COLLECTIVE), strict=True):
            assert old.names[int(a["name2"])] == new.names[int(b["name2"])]


@settings(max_examples=60, deadline=None)
@given(actions)
def test_without_contention_it_is_the_online_clock(todo):
    with tempfile.TemporaryDirectory() as folder:
        traces = run(Path(folder), todo)
        result = replay(traces, contended=False)
        assert not result.unfinished and not result.notes
        same(traces, result.traces)


@settings(max_examples=30, deadline=None)
@given(actions)
def test_also_where_dispatch_takes_time(todo):
    cluster = load_cluster(assumptions={"dispatch_ns": 20_000.0})
    with tempfile.TemporaryDirectory() as folder:
        traces = run(Path(folder), todo, cluster=cluster)
        same(traces, replay(traces, cluster, contended=False).traces)


@settings(max_examples=30, deadline=None)
@given(actions)
def test_contention_only_delays_and_its_result_is_one(todo):
    with tempfile.TemporaryDirectory() as folder:
        traces = run(Path(folder), todo)
        online, shared = replay(traces, contended=False), replay(traces)
        assert not shared.unfinished
        for a, b in zip(online.outcomes, shared.outcomes, strict=True):
            assert a.time_ns == a.alone_ns <= b.time_ns and a.start_ns <= b.start_ns
        for a, b in zip(online.traces, shared.traces, strict=True):
            assert (a.records["end_ns"] <= b.records["end_ns"]).all()
        again = replay(traces[::-1])
        assert again.outcomes == shared.outcomes
        assert (again.link_lost_ns == shared.link_lost_ns).all()
        lost = sum(o.time_ns - o.alone_ns for o in shared.outcomes)
        assert shared.link_lost_ns.sum() == pytest.approx(lost, abs=1 + len(shared.outcomes))


@settings(max_examples=30, deadline=None)
@given(actions)
def test_a_run_that_was_killed(todo):
    """Nobody hangs, what can be known is right, and every rank that waits is named with what it waits for."""
    with tempfile.TemporaryDirectory() as folder:
        traces = run(Path(folder), todo, finish=False)
        result = replay(traces, contended=False)
        same(traces, result.traces)  # what was recorded had happened
        shared = replay(traces)
        assert {u.rank for u in shared.unfinished} == {u.rank for u in result.unfinished}
        for unfinished in result.unfinished:
            assert unfinished.left_out == 0 and unfinished.because


@settings(max_examples=30, deadline=None)
@given(actions, st.lists(st.floats(0, 1), min_size=WORLD, max_size=WORLD))
def test_files_that_end_anywhere(todo, parts):
    """What is reached has the recorded times, and what is not is behind something that is missing."""
    with tempfile.TemporaryDirectory() as folder:
        whole = run(Path(folder), todo)
        cut = [
            replace(t, records=t.records[: int(len(t.records) * p)])
            for t, p in zip(whole, parts, strict=True)
        ]
        result, shared = replay(cut, contended=False), replay(cut)
        for old, new, also in zip(cut, result.traces, shared.traces, strict=True):
            assert set(new.records[list(FIELDS)].tolist()) <= set(
                old.records[list(FIELDS)].tolist()
            )
            assert len(also.records) == len(new.records)
        left = sum(
            len(old.records) - len(new.records) for old, new in zip(cut, result.traces, strict=True)
        )
        assert bool(result.unfinished) or not left
        assert [str(u) for u in shared.unfinished] == [str(u) for u in result.unfinished]


def two_groups(folder, first, second, nbytes=64 << 20, late_ns=0):
    """Two groups that begin the same all_gather at once, or the second group later."""
    online = Online(folder, 64, [first, second])
    for g, ranks in enumerate((first, second)):
        for rank in ranks:
            if g and late_ns:
                flops = late_ns * online.roofline.tensor_flops["float32"] / 1e9
                launch = round(online.roofline.launch_ns)
                online.kernel(rank, 0, flops=round(flops * (late_ns - launch) / late_ns))
            online.call(rank, g, "all_gather", nbytes)
    for rank in range(64):
        online.work_wait(rank, 0, 1)
        online.step(rank, 0)
    return online.traces()


def costs(ranks, nbytes):
    p = plan("all_gather", nbytes, ranks, load_cluster())
    total, latency = (
        int(np.floor(p_ns + 0.5)) for p_ns in (p.time_ns, p.ready.pricer.price(0).time_ns)
    )
    busy = p.price.bytes_by_link / p.price.topology.link_Bps * 1e9
    return total, latency, busy / (p.time_ns - p.ready.pricer.price(0).time_ns)


def test_a_collective_alone_takes_its_own_time_to_the_nanosecond(tmp_path):
    traces = two_groups(tmp_path, list(range(0, 32)), [40, 41])
    result = replay(traces)
    assert [o.slowdown for o in result.outcomes] == [1.0, 1.0]
    same(traces, result.traces)


def test_two_that_need_the_same_links_take_twice_as_long(tmp_path):
    """Both between chips 0 and 1, over one link each way: each has half of it for the whole of its transfer."""
    first, second = [0, 4], [1, 5]
    total, latency, need = costs(first, 64 << 20)
    link = topology_of(load_cluster()).link_names.index("chip 0 -> chip 1")
    assert need[link] == pytest.approx(1.0)
    result = replay(two_groups(tmp_path, first, second))
    expected = latency + 2 * (total - latency)
    assert [o.time_ns for o in result.outcomes] == [expected, expected]
    assert [s.time_ns for s in result.steps] == [expected]
    assert result.topology.link_names[int(result.link_lost_ns.argmax())] in (
        "chip 0 -> chip 1",
        "chip 1 -> chip 0",
    )
    assert "chip 0 -> chip 1" in (result.hot_link, "chip 1 -> chip 0")
    assert result.link_bytes[link] == 2 * (32 << 20)


def test_the_second_comes_later(tmp_path):
    """Alone, then together at half speed, then the second alone."""
    first, second, late = [0, 4], [1, 5], 100_000
    total, latency, _ = costs(first, 64 << 20)
    result = replay(two_groups(tmp_path, first, second, late_ns=late))
    work = total - latency
    a, b = result.outcomes
    assert b.start_ns == late
    # alone until the second's transfer begins, `late` after its own began
    left = work - late
    assert a.end_ns == latency + late + 2 * left
    done_by_second = left
    assert b.end_ns == a.end_ns + (work - done_by_second)


def test_what_shares_no_link_is_not_slowed(tmp_path):
    result = replay(two_groups(tmp_path, [0, 4], [40, 44]))
    assert [o.slowdown for o in result.outcomes] == [1.0, 1.0]
    assert not result.link_lost_ns.any()


def test_links_are_those_of_the_groups_own_cores(tmp_path):
    """Groups of one shape in two instances share a plan, but no link."""
    cluster = load_cluster(instances=2)
    online = Online(tmp_path, 128, [[0, 4], [64, 68], [1, 5]], cluster=cluster)
    for g, ranks in enumerate(online.groups):
        for rank in ranks:
            online.call(rank, g, "all_gather", 64 << 20)
    result = replay(online.traces())
    assert {o.ranks: o.slowdown > 1.9 for o in result.outcomes} == {
        (0, 4): True,
        (1, 5): True,
        (64, 68): False,
    }
    names = result.topology.link_names
    assert result.link_bytes[names.index("instance 1 chip 0 -> chip 1")] == 32 << 20
    assert result.link_bytes[names.index("instance 0 chip 0 -> chip 1")] == 64 << 20
    for operation in result.outcomes:  # the group's own pricer says the same
        p = plan("all_gather", 64 << 20, operation.ranks, cluster)
        own = Pricer(p.schedule, Group(cluster, operation.ranks)).price(64 << 20)
        assert own.time_ns == p.time_ns
        assert (
            result.link_bytes[own.bytes_by_link > 0] >= own.bytes_by_link[own.bytes_by_link > 0]
        ).all()


def test_a_delay_spreads_to_what_waits_for_it_and_is_hidden_elsewhere(tmp_path):
    """Two groups slow one another; one rank computes meanwhile, the other waits at once."""
    online = Online(tmp_path, 6, [[0, 4], [1, 5]])
    total, latency, _ = costs([0, 4], 64 << 20)
    long = round(3 * total * online.roofline.tensor_flops["float32"] / 1e9)
    for g, ranks in enumerate(online.groups):
        for rank in ranks:
            online.call(rank, g, "all_gather", 64 << 20)
            if g:
                online.kernel(rank, 0, flops=long)
    for rank in (0, 4, 1, 5):
        assert online.work_wait(rank, 0, 1)
        online.kernel(rank, 0)
        online.step(rank, 0)
    traces = online.traces()
    result = replay(traces)
    more = [
        int(b.of(Kind.STEP)["end_ns"][0]) - int(a.of(Kind.STEP)["end_ns"][0])
        for a, b in zip(traces, result.traces, strict=True)
        if len(a.of(Kind.STEP))
    ]
    assert more == [total - latency, 0, total - latency, 0]


@pytest.mark.parametrize("eager", [True, False])
def test_messages_share_links_too(tmp_path, eager):
    """Two channels over one link, two messages each; the second of a channel leaves when the first has left."""
    nbytes = 16 << 20
    online = Online(tmp_path, 6, [[0, 4], [1, 5]])
    for g, (source, target) in enumerate(online.groups):
        for _ in range(2):
            online.recv(target, g, 0, nbytes)
            online.send(source, g, 1, nbytes, eager=eager)
    p = plan("send", nbytes, [0, 4], load_cluster())
    total, latency = rounded(p.time_ns), rounded(p.ready.pricer.price(0).time_ns)
    result = replay(online.traces())
    times = [(o.start_ns, o.end_ns) for o in result.outcomes]
    one = latency + 2 * (total - latency)
    if eager:  # the channel is free when the message has been sent, at half speed
        assert times == [(0, one), (one, 2 * one)] * 2
    else:  # by its own time, while the first still has half of its bytes to send: four share, then two
        begins = total + latency
        assert [start for start, _ in times] == [0, total] * 2
        half = (total - latency) - (
            begins - latency
        ) / 2  # left of the first ones when the second ones begin
        ends = begins + 4 * half
        assert times[0][1] == pytest.approx(ends, abs=2)
        assert times[1][1] == pytest.approx(ends + 2 * (total - latency - half), abs=3)
    senders = [t.of(Kind.MESSAGE)["end_ns"].tolist() for t in result.traces]
    assert senders[0] == senders[4] == [end for _, end in times[:2]]


def test_parts_of_a_step(tmp_path):
    todo = [
        ("kernel", 0, 0, 9000, 4),
        ("call", 0, 1, 1, 4),
        ("kernel", 0, 2, 60000, 5),
        ("step", 0, 0, 0, 0),
        ("call", 1, 0, 1, 4),
        ("kernel", 0, 0, 30000, 7),
    ]
    for trace in replay(run(tmp_path, todo * 3), contended=True).traces:
        compute, communication = (
            trace.of(*kinds) for kinds in ((Kind.KERNEL,), (Kind.COLLECTIVE, Kind.MESSAGE))
        )
        before = 0
        for step in trace.of(Kind.STEP):
            parts = split(
                union(compute["start_ns"], compute["end_ns"]), union(communication["start_ns"], communication["end_ns"]), before, int(step["end_ns"])
            )  # fmt: skip
            assert (step["start_ns"], step["b"], step["c"], step["d"]) == (before, *parts[:3])
            before = int(step["end_ns"])
