"""Bytes by link are those of the real ranks, also where plans are shared, and add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import load_cluster, plan
from collectives.bandwidth import FACTORS, busbw_factor
from collectives.cost import Pricer
from collectives.group import Group
from collectives.schedule import OPS
from collectives.traffic import bytes_by_link

CLUSTER = load_cluster(instances=3)


@settings(max_examples=25, deadline=None)
@given(
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
    first=st.integers(0, CLUSTER.cores - 8),
    stride=st.sampled_from([1, 4, 8]),
)
def test_links_are_those_of_the_ranks(op, first, stride):
    ranks = [r for r in range(first, CLUSTER.cores, stride)][:8]
    found = bytes_by_link(op, 1 << 20, ranks, CLUSTER)
    own = Pricer(plan(op, 1 << 20, ranks, CLUSTER).schedule, Group(CLUSTER, ranks))
    assert np.array_equal(found, own.price(1 << 20).bytes_by_link)


def test_two_groups_of_one_shape_use_their_own_links():
    a, b = (
        bytes_by_link("all_reduce", 1 << 20, range(i * 64, i * 64 + 16), CLUSTER) for i in (0, 2)
    )
    per_instance = len(a) // 3
    assert a[:per_instance].any() and not a[per_instance:].any()
    assert (
        np.array_equal(b[2 * per_instance :], a[:per_instance]) and not b[: 2 * per_instance].any()
    )


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_bytes_of_many_add_up(sizes):
    one = {"algorithm": "ring", "ranks": range(0, 64, 4), "cluster": CLUSTER}
    apart = sum(bytes_by_link("all_gather", n, **one) for n in sizes)
    together = bytes_by_link("all_gather", sum(sizes), **one)
    assert np.abs(together - apart).max() <= 16 * 16 * len(
        sizes
    )  # less than a byte a chunk and hop


@pytest.mark.parametrize("op", OPS)
def test_bus_bandwidth_factors_are_nccom_tests(op):
    factor = busbw_factor(op, 8)
    assert (factor is None) == (op not in FACTORS)
    if factor is not None:
        assert factor == {"all_reduce": 14 / 8, "permute": 1, "send": 1}.get(op, 7 / 8)
