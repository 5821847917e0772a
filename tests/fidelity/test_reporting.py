"""Once for each rule and site, on one rank, and under the filters that Python has."""

import re
import threading
import warnings
from datetime import timedelta

import pytest
import torch.distributed as dist

from neuron_dist.fidelity import FidelityWarning
from neuron_dist.fidelity.reporting import Reporter, store_claim


def always(key):
    return True


def never(key):
    return False


@pytest.fixture
def issued():
    """Warnings as they are issued, under Python's default filter, which shows each once for a location."""
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.simplefilter("default")
        yield found


def test_once_for_each_rule_and_site(issued):
    reporter = Reporter()
    for _ in range(3):
        reporter.report("one", "text one", always)
        reporter.report("two", "text two", always)
    reporter.report("one", "text one", always)
    assert [str(w.message) for w in issued] == ["text one", "text two", "text one"]
    assert all(w.category is FidelityWarning and w.filename == __file__ for w in issued)
    assert issued[1].lineno == issued[0].lineno + 1
    assert [(c.rule, c.count) for c in reporter.counts()] == [("one", 3), ("two", 3), ("one", 1)]


def test_two_rules_on_one_line(issued):
    reporter = Reporter()
    for rule in ("one", "two", "one"):
        reporter.report(rule, "the same text", always)
    assert len(issued) == 2


def test_counts_are_what_the_trace_holds(issued):
    reporter = Reporter()
    for _ in range(2):
        reporter.report("one", "text", never)
        reporter.count("two", "other text")
    assert issued == []
    first, second = (c.to_dict() for c in reporter.counts())
    assert re.fullmatch(
        rf"{re.escape(__file__)}:\d+ \({test_counts_are_what_the_trace_holds.__name__}\)",
        first["site"],
    )
    assert (first["rule"], first["message"], first["count"]) == ("one", "text", 2)
    assert list(second) == ["rule", "site", "message", "count"] and second["count"] == 2


def test_the_claim_is_asked_once_by_rule_and_line(issued):
    asked = []
    reporter = Reporter()
    for _ in range(3):
        reporter.report("one", "text", asked.append)
    (key,) = asked
    assert re.fullmatch(rf"one@{re.escape(__file__)}:\d+", key)


@pytest.mark.parametrize("claim", [always, never])
def test_an_error_is_raised_on_every_rank_and_each_time(claim):
    reporter = Reporter()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FidelityWarning)
        for _ in range(3):
            with pytest.raises(FidelityWarning, match="text"):
                reporter.report("one", "text", claim)
    assert reporter.counts()[0].count == 3


@pytest.mark.parametrize(
    ("filter", "raises"),
    [
        ({"category": UserWarning}, True),
        ({"category": DeprecationWarning}, False),
        ({"message": "tex"}, True),
        ({"message": "ext"}, False),
        ({"module": re.escape(__name__)}, True),
        ({"module": "tests.other"}, False),
        ({"lineno": 1}, False),
    ],
)
def test_filters_are_read_as_python_reads_them(filter, raises):
    """On a rank that does not print: nothing but an error may come of it."""
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.filterwarnings("error", **filter)
        try:
            Reporter().report("one", "text", never)
        except FidelityWarning:
            assert raises
        else:
            assert not raises
        assert found == []


def test_the_first_filter_that_fits_holds(issued):
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", FidelityWarning)
    Reporter().report("one", "text", always)
    assert issued == []
    warnings.filters.insert(
        0, ("error", None, Warning, __name__, 0)
    )  # a plain text, as Python's own filters have
    with pytest.raises(FidelityWarning):
        Reporter().report("one", "text", never)


def test_many_threads(issued):
    reporter, threads = Reporter(), []

    def work():
        for _ in range(500):
            reporter.report("one", "text", always)

    for _ in range(8):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert [c.count for c in reporter.counts()] == [4000]
    assert len(issued) == 1


def test_the_first_rank_at_the_store_prints(issued):
    store = dist.HashStore()
    for reporter in (Reporter(), Reporter()):
        for rule in ("one", "two"):
            reporter.report(rule, rule, store_claim(lambda: store))
    assert [str(w.message) for w in issued] == ["one", "two"]


def test_without_a_store_the_rank_speaks_for_itself(capfd):
    def no_group():
        raise ValueError("Default process group has not been initialized")

    assert store_claim(no_group)("key")
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("localhost", server.port, is_master=False, timeout=timedelta(seconds=5))
    claim = store_claim(lambda: client)
    assert claim("key") and not claim("key")
    del server
    assert claim("key")
