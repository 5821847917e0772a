"""Numbers with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_dist.simulation import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.time(0), "0 ns"),
        (units.time(999.6), "1.00 us"),
        (units.time(1_234_567), "1.23 ms"),
        (units.time(98_765_432_109), "98.8 s"),
        (units.time(-1500), "-1.50 us"),
        (units.volume(999_999), "1.00 MB"),
        (units.volume(512), "512 B"),
        (units.memory(2**30 + 1), "1.00 GiB"),
        (units.memory(24 << 30), "24 GiB"),
        (units.rate(96.3e9), "96.3 GB/s"),
        (units.rate(166.75e12, "FLOPS"), "167 TFLOPS"),
        (units.share(0.1234), "12.3 %"),
    ],
)
def test_texts(text, expected):
    assert text == expected


@given(st.integers(0, 10**15))
def test_three_digits_are_right(ns):
    number, unit = units.time(ns).split()
    scale = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert abs(float(number) * scale - ns) <= max(0.0051 * ns, 0.5)
    assert unit == "s" or float(number) < 1000
