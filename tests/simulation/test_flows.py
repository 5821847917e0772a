"""Transfers that share links: hand-computed examples, and what holds for any."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dist.simulation.flows import Demand, Flows, share


def demand(number=0, **need):
    """``demand(a=1, b=0.5)``: needs of links a, b, ..., which are 0, 1, ..."""
    links = sorted(ord(name) - ord("a") for name in need)
    return Demand(
        number, np.array(links), np.array([float(need[chr(ord("a") + link)]) for link in links])
    )


def speeds(*demands):
    return share(demands)[0].tolist()


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        ([{"a": 1}], [1]),
        ([{"a": 1}, {"a": 1}], [0.5, 0.5]),
        ([{"a": 1}, {"b": 1}], [1, 1]),
        ([{"a": 1}] * 4, [0.25] * 4),
        ([{"a": 0.5}, {"a": 0.5}], [1, 1]),
        # who needs a fifth of the link has it, the other has the rest
        ([{"a": 0.2}, {"a": 1}], [1, 0.8]),
        # a third each; who needs less than that leaves the rest to the other two
        ([{"a": 0.2}, {"a": 1}, {"a": 1}], [1, 0.4, 0.4]),
        # the long one has half of each of its links and so half its speed; nobody else is on a or b
        ([{"a": 1, "b": 1}, {"a": 1}, {"b": 1}], [0.5, 0.5, 0.5]),
        # three on b settle the long one at a third, which leaves two thirds of a
        ([{"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {"b": 1}], [1 / 3, 2 / 3, 1 / 3, 1 / 3]),
        # the long one needs less of b: at half speed, for a, a quarter of it; three quarters are left
        ([{"a": 1, "b": 0.5}, {"a": 1}, {"b": 1}], [0.5, 0.5, 0.75]),
    ],
)
def test_by_hand(demands, expected):
    assert speeds(*(demand(**d) for d in demands)) == pytest.approx(expected, abs=1e-12)


def test_what_is_left_over_is_used():
    """Half of a is the fair share of both. The second is held by b to a sixth of it, for 0.3 of it at full speed, so
    5/9 of its speed, where it uses a third of a: the first, settled at a half before, may have two thirds."""
    first, second = demand(a=1), demand(a=0.6, b=0.3)
    others = [demand(b=1)] * 5
    assert speeds(first, second, *others) == pytest.approx([2 / 3, 5 / 9, *[1 / 6] * 5], abs=1e-12)


def test_what_holds_it_up():
    _, causes = share([demand(a=1, b=0.1), demand(a=1), demand(c=0.3)])
    assert [c.tolist() for c in causes] == [[0], [0], []]


needs = st.dictionaries(
    st.sampled_from("abcdef"), st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 0.77, 1.0]), min_size=1
)


@given(st.lists(needs, min_size=1, max_size=9), st.randoms())
def test_of_any_transfers(kinds, random):
    demands = [demand(**kind) for kind in kinds]
    speed, causes = share(demands)
    need = np.zeros((len(kinds), 6))
    for row, d in zip(need, demands, strict=True):
        row[d.links] = d.need
    used = speed @ need
    assert (used <= 1 + 1e-9).all() and (speed > 0).all() and (speed <= 1).all()
    for d, x, cause in zip(demands, speed, causes, strict=True):
        # nobody could be faster without taking from another
        assert x == 1 or (len(cause) and (used[cause] >= 1 - 1e-8).all())
        # and nobody has less than its fair share of each of its links
        sharers = (need[:, d.links] > 0).sum(axis=0)
        assert x >= min(1.0, (1 / sharers / d.need).min()) - 1e-8
    order = list(range(len(kinds)))
    random.shuffle(order)
    assert share([demands[i] for i in order])[0] == pytest.approx(speed[order], abs=1e-8)


def run(transfers):
    """[(begin, demand, work)] -> ends."""
    flows, ends, now = Flows(26), {}, 0
    begins = sorted((begin, i) for i, (begin, _, _) in enumerate(transfers))
    events = {}
    while begins or events:
        now = min([b for b, _ in begins[:1]] + list(events.values()))
        for i in [i for i, end in events.items() if end == now]:
            assert flows.ends(now, i)
            flows.end(now, i)
            ends[i] = events.pop(i)
        while begins and begins[0][0] == now:
            i = begins.pop(0)[1]
            flows.begin(now, i, *transfers[i][1:])
        for end, i in flows.settle(now):
            events[i] = end
    return [ends[i] for i in range(len(transfers))], flows


def test_ends_to_the_nanosecond():
    a = demand(1, a=1)
    assert run([(0, a, 1000)])[0] == [1000]
    ends, flows = run([(0, a, 1000), (0, a, 1000)])
    assert ends == [2000, 2000]
    assert flows.lost_ns[0] == 2000
    # 400 alone, then 1200 together, then the second 400 alone
    assert run([(0, a, 1000), (400, a, 1000)])[0] == [1600, 2000]
    # 300 alone, the short one's 50 at a third each, the first's other 650 at half, the second's other 300 alone
    assert run([(0, a, 1000), (300, a, 1000), (300, a, 50)])[0] == [
        300 + 150 + 1300,
        300 + 150 + 1300 + 300,
        300 + 150,
    ]


def test_nothing_to_share_changes_nothing():
    ends, flows = run(
        [(0, demand(1, a=0.3), 777), (10, demand(2, a=0.3), 1), (20, demand(3, b=1), 5)]
    )
    assert ends == [777, 11, 25]
    assert not flows.lost_ns.any()


@given(st.lists(st.tuples(st.integers(0, 300), needs, st.integers(1, 400)), min_size=1, max_size=8))
def test_time_is_lost_where_links_are_shared_and_nowhere_else(jobs):
    transfers = [(begin, demand(i, **kind), work) for i, (begin, kind, work) in enumerate(jobs)]
    ends, flows = run(transfers)
    lost = sum(end - begin - work for end, (begin, _, work) in zip(ends, transfers, strict=True))
    assert flows.lost_ns.sum() == pytest.approx(lost, abs=1 + len(jobs))
    assert all(end >= begin + work for end, (begin, _, work) in zip(ends, transfers, strict=True))
    assert run(transfers[::-1])[0][::-1] == ends
