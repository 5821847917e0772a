"""Intervals of compute and communication, against sets of nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from neuron_dist.simulation.busy import Busy, intersect, within
from neuron_dist.simulation.intervals import union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=12)


def disjoint(spans):
    starts = np.array([a for a, _ in spans], np.int64)
    return union(starts, starts + np.array([n for _, n in spans], np.int64))


def points(intervals):
    return {t for a, b in intervals.tolist() for t in range(a, b)}


@given(SPANS, SPANS)
def test_exposed_and_overlapped_are_the_sets(compute, communication):
    busy = Busy(disjoint(compute), disjoint(communication))
    c, m = points(busy.compute), points(busy.communication)
    assert points(busy.overlapped) == c & m and points(busy.exposed) == m - c
    assert points(intersect(busy.compute, busy.communication)) == c & m


@given(SPANS, st.integers(0, 70), st.integers(0, 30))
def test_within_cuts(spans, start, width):
    intervals = disjoint(spans)
    assert points(within(intervals, start, start + width)) == points(intervals) & set(
        range(start, start + width)
    )


@given(SPANS, SPANS, st.integers(0, 40), st.integers(1, 40))
def test_split_adds_up(compute, communication, start, width):
    found = Busy(disjoint(compute), disjoint(communication)).split(start, start + width)
    span = set(range(start, start + width))
    c, m = points(disjoint(compute)) & span, points(disjoint(communication)) & span
    assert found == (len(c), len(m - c), len(c & m), width - len(c | m))
