"""What a run of marked tests reports: one session of many small ones."""

import xml.etree.ElementTree as ElementTree

import pytest

TESTS = """
import os, sys, time, warnings
import pytest
import torch.distributed as dist


@pytest.fixture(scope="session")
def hundred(rank):
    return rank + 100


@pytest.fixture
def broken(rank):
    if rank == 1:
        raise LookupError("no fixture today")


@pytest.fixture
def late(rank):
    yield
    assert rank == 0, "late"


class Picky(Exception):
    def __init__(self, *, code):  # cannot be pickled
        super().__init__(code)


@pytest.mark.neuron(ranks=4)
def test_values(rank):
    print("hello")
    print("I am", rank)
    value = {0: 1, 1: 5, 2: 7, 3: 5}[rank]
    assert value < 2


@pytest.mark.neuron(ranks=2)
def test_consequence(rank):
    if rank == 1:
        raise ValueError("boom")
    dist.barrier()


@pytest.mark.neuron(ranks=2, env={"COLOUR": "blue"})
@pytest.mark.parametrize("letter", ["x", "y"])
class TestClass:
    @pytest.mark.neuron(mesh=(1, 2), mesh_dim_names=("a", "b"))
    def test_fixtures(self, letter, rank, world_size, device, mesh, hundred, tmp_path, monkeypatch, capsys):
        assert (world_size, os.environ["COLOUR"]) == (dist.get_world_size(), "blue")
        assert (str(device), mesh.mesh_dim_names, hundred) == (f"neuron:{rank}", ("a", "b"), 100 + rank)
        monkeypatch.setenv("COLOUR", letter)
        print(letter)
        assert capsys.readouterr().out == letter + "\\n"
        (tmp_path / str(rank)).touch()
        dist.barrier()
        assert len(list(tmp_path.iterdir())) == 2

    @pytest.mark.neuron(ranks=1, backend="gloo")
    def test_closest_mark(self, letter, world_size, device):
        assert (world_size, device.type, dist.get_backend()) == (1, "cpu", "gloo")


@pytest.mark.neuron(ranks=2)
def test_setup(broken):
    pass


@pytest.mark.neuron(ranks=2)
def test_teardown(late, record_property):
    record_property("seen", "yes")


@pytest.mark.neuron(ranks=2)
def test_skip():
    pytest.skip("not today")


@pytest.mark.neuron(ranks=2)
def test_one_skips(rank):
    if rank:
        pytest.skip("only rank 0 looks")


@pytest.mark.skipif(True, reason="marked")
@pytest.mark.neuron(ranks=2)
def test_skip_mark():
    os._exit(1)


@pytest.mark.xfail(raises=KeyError)
@pytest.mark.neuron(ranks=2)
def test_xfail(rank):
    if rank:
        {}[1]


@pytest.mark.xfail(raises=KeyError)
@pytest.mark.neuron(ranks=2)
def test_xfail_other(rank):
    raise TypeError


@pytest.mark.xfail(strict=True)
@pytest.mark.neuron(ranks=2)
def test_xpass():
    pass


@pytest.mark.neuron(ranks=2)
def test_raises():
    warnings.warn("careful")
    with pytest.raises(KeyError):
        {}[1]


@pytest.mark.neuron(ranks=1)
def test_not_picklable():
    raise Picky(code=3)


@pytest.mark.neuron(ranks=2)
def test_death(rank):
    print("last words")
    if rank == 1:
        os.kill(os.getpid(), 9)


@pytest.mark.timeout(5)  # pytest-timeout's
@pytest.mark.neuron(ranks=3)
def test_hang(rank):
    if rank != 1:
        time.sleep(600)
"""


@pytest.mark.timeout(600)
def test_reports(inner, run):
    inner.makepyfile(test_it=TESTS)
    result = run("--durations=3", "--junitxml=it.xml", "-rA", "-o", "enable_assertion_pass_hook=true")
    result.assert_outcomes(passed=7, failed=7, skipped=2, xfailed=1, errors=2, warnings=1)
    out = result.stdout

    # Each rank's value, the first in time first, equal ones once, and what held where the assertion did.
    out.re_match_lines_random([
        r"(rank 2|ranks 1, 3) of 4 failed|ranks 1-3 of 4 failed, rank \d first; rank 0 passed",
        r"----- ranks 1, 3(, at the same line)? -----",
        r"----- rank 2(, at the same line)? -----",
        r"E       assert 5 < 2",
        r"E       assert 7 < 2",
        r"----- rank 0 passed that line -----",
        r"    assert 1 < 2",
        r"-+ Captured stdout call \(rank 3\) -+",
        r"I am 3",
        r"FAILED test_it.py::test_values - rank \d: assert \d < 2",
    ])  # fmt: skip
    # A peer's consequence comes second and without torch's source.
    out.fnmatch_lines([
        "ranks 0-1 of 2 failed, rank 1 first",
        "----- rank 1 -----",
        "E*ValueError: boom",
        "----- rank 0 -----",
        ">       dist.barrier()",
        "E*DistBackendError: *rank 1*",
    ])  # fmt: skip
    assert "Synchronize all processes" not in str(out)
    # Phases.
    out.fnmatch_lines_random([
        "ERROR test_it.py::test_setup - rank 1: LookupError: no fixture today",
        "ERROR test_it.py::test_teardown - rank 1: AssertionError: late*",
        "FAILED test_it.py::test_not_picklable - rank 0: test_it.Picky: 3",
        "FAILED test_it.py::test_xfail_other - rank *: TypeError",
        "FAILED test_it.py::test_xpass - *XPASS(strict)*",
        "SKIPPED * test_it.py:*: not today",
        "SKIPPED * test_it.py:*: marked",
        "*UserWarning: careful",
    ])  # fmt: skip
    # Ranks that report nothing.
    out.fnmatch_lines_random([
        "rank 1 (pid *) ended without a result: killed by SIGKILL",
        "*Captured stdout call (ranks 0-1)*",
        "last words",
        "ranks 0, 2 of 3 did not finish test_it.py::test_hang within 5 s",
        '  File "*test_it.py", line * in test_hang',
    ])  # fmt: skip
    assert "pluggy" not in str(out)[str(out).index("did not finish") :]

    cases = {
        case.get("name"): case for case in ElementTree.parse(inner.path / "it.xml").iter("testcase")
    }
    assert cases["test_consequence"][0].get("message") == "rank 1: ValueError: boom"
    assert cases["test_teardown"].find("properties/property").attrib == {"name": "seen", "value": "yes"}
