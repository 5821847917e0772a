"""Shapes of groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.topology import load_cluster
from neuron_dist.fidelity.placement import placement


@pytest.mark.parametrize(
    ("ranks", "instances", "chips", "symmetric", "layout", "cores"),
    [
        ((5,), 1, 1, True, "1x1", "5-5"),
        (range(16), 1, 4, True, "1x16", "0-15"),
        (range(4, 8), 1, 1, True, "1x4", "4-7"),
        (range(0, 64, 4), 1, 16, True, "4x16", ""),
        ((0, 32), 1, 2, True, "32x2", ""),
        ((32, 0), 1, 2, True, "32x2", ""),
        ((0, 1, 3), 1, 1, True, "", ""),
        ((1, 65), 2, 2, True, "1x1", "1-1"),
        ((0, 32, 64, 96), 2, 4, True, "32x2", ""),
        ((0, 1, 64), 2, 2, False, "", ""),
        ((0, 1, 64, 66), 2, 2, False, "", ""),
        (range(128), 2, 32, True, "1x64", "0-63"),
    ],
)
def test_of_two_trn2_instances(ranks, instances, chips, symmetric, layout, cores):
    found = placement(tuple(ranks), load_cluster(instances=2))
    assert (found.size, found.instances, found.chips) == (len(ranks), instances, chips)
    assert (found.symmetric, found.layout, found.cores) == (symmetric, layout, cores)
    assert found.stride == (int(layout.split("x")[0]) if layout else 0)


def test_an_ultraserver_is_one_instance():
    assert placement((0, 64), load_cluster("trn2-ultraserver")).instances == 1


def test_ranks_follow_the_mapping():
    swapped = load_cluster("trn2.3xlarge", mapping=[0, 2, 1, 3])
    assert placement((0, 1), swapped).layout == "2x2"


@given(st.lists(st.integers(0, 127), min_size=1, max_size=20, unique=True), st.randoms())
def test_the_order_of_ranks_plays_no_role(ranks, random):
    cluster = load_cluster(instances=2)
    shuffled = list(ranks)
    random.shuffle(shuffled)
    assert placement(tuple(ranks), cluster) == placement(tuple(shuffled), cluster)
