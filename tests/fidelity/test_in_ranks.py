"""The profile on real groups: one line for each rule and call site, on one rank; strict mode raises on all."""

import inspect

import pytest

from neuron_dist.testing import run_ranks
from tests.fidelity import calls_in_ranks as calls


def line_of(function, text):
    source, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(source) if text in line)


@pytest.mark.parametrize(
    "name, ranks, rule, text",
    [
        ("float64", 4, "dtype", "dist.all_reduce"),
        ("uneven", 4, "uneven-all-to-all", "dist.all_to_all_single"),
        ("six_ranks", 6, "group-size", "dist.all_reduce"),
        ("cpu_tensor_after_objects", 2, "cpu-tensor", "dist.all_reduce"),
        ("subgroup_barrier", 4, "subgroup-barrier", "dist.barrier"),
    ],
)
def test_one_line_for_a_call_site(name, ranks, rule, text):
    results = run_ranks(ranks, calls.reports, name)
    told = [r for told, _ in results for r in told if r[0] == rule]
    assert told == [(rule, calls.__file__, line_of(calls.CALLS[name], text))]
    members = 2 if name == "subgroup_barrier" else ranks
    assert [dict(c).get(rule, 0) for _, c in results] == [3] * members + [0] * (ranks - members)


def test_legal_calls_say_nothing():
    assert run_ranks(4, calls.reports, "legal") == [([], [])] * 4


@pytest.mark.parametrize("name", ["float64", "uneven"])
def test_strict_raises_on_every_rank(name):
    errors = run_ranks(
        4, calls.strict, name, env={"NEURON_DIST_FIDELITY": "strict"}, return_exceptions=True
    )
    rule = "dtype" if name == "float64" else "uneven-all-to-all"
    if name == "float64":
        assert len(set(errors)) == 1 and f"[rule {rule};" in errors[0]
        assert "NEURON_DIST_FIDELITY=warn" in errors[0]
    else:  # sizes differ from rank to rank, so the group is given up rather than left hanging
        assert all(isinstance(e, Exception) for e in errors)


def test_off_says_nothing():
    env = {"NEURON_DIST_FIDELITY": "off"}
    assert run_ranks(2, calls.reports, "float64", env=env) == [([], [])] * 2


def test_peers_of_a_rank_that_is_kept_back_do_not_hang():
    env = {"NEURON_DIST_FIDELITY": "strict"}
    first, *others = run_ranks(4, calls.one_rank_uneven, env=env, timeout=30)
    assert first[0] == "FidelityError" and "uneven" in first[1]
    for kind, text in others:
        assert kind == "DistBackendError"
        assert "rank 0 was kept from calling all_to_all" in text and "fidelity" in text
