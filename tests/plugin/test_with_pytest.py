"""The plugin beside pytest's options, pytest-xdist, the debugger, and where it is not wanted."""


import pytest

pytestmark = pytest.mark.timeout(600)

MARKED = """
import pytest

@pytest.mark.neuron(ranks=2)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_it(rank, n, tmp_path, request):
    print(f"{n} in rank {rank}")
    assert request.config.getoption("--colour") == "red"
    assert n != 2
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--colour")

def pytest_collection_modifyitems(items):
    items.reverse()
"""


def test_stops_at_the_first_failure_and_prints_uncaptured(inner, run):
    inner.makepyfile(test_it=MARKED)
    inner.makeconftest(CONFTEST)
    result = run("-x", "-s", "--colour=red", "-k", "2 or 1")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines_random(["*[[]rank0[]] 2 in rank 0", "*[[]rank1[]] 2 in rank 1"])


def test_xdist(inner, run):
    pytest.importorskip("xdist")
    inner.makepyfile(test_it=MARKED)
    inner.makeconftest(CONFTEST)
    result = run("-n", "1", "--colour=red")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["ranks 0-1 of 2 failed*", ">       assert n != 2", "E       assert 2 != 2", "*Captured stdout call (rank 0)*"]
    )


def test_debugger(inner):
    """After a failure in one rank, and where a test asks for it; Ctrl-C comes back to the prompt."""
    pytest.importorskip("pexpect")
    inner.makepyfile(
        test_it="""
        import pytest, torch.distributed as dist

        @pytest.mark.neuron(ranks=2, timeout=5)
        def test_asks(rank):
            if rank == 1:
                breakpoint()
            dist.barrier()

        @pytest.mark.neuron(ranks=3)
        def test_fails(rank):
            assert rank != 1
            dist.barrier()
        """
    )
    child = inner.spawn_pytest("--pdb", expect_timeout=590)
    child.expect("rank 1 of 2")
    child.expect(r"\(Pdb\)")
    child.sendintr()
    child.expect("KeyboardInterrupt")
    child.expect(r"\(Pdb\)")
    child.sendline("p 1000 + rank")
    child.expect("1001")
    child.sendline("c")
    child.expect("rank 1 of 3")
    child.expect("assert 1 != 1")
    child.expect(r"\(Pdb\)")
    child.sendline("p 2000 + rank")
    child.expect("2001")
    child.sendline("c")
    child.expect("PDB continue")
    rest = child.read().decode()
    assert "(Pdb)" not in rest and "1 failed" in rest and "1 passed" in rest


@pytest.mark.parametrize(
    "mark, complaint",
    [
        ("neuron(rank=2)", "there is no option 'rank'; did you mean 'ranks'?"),
        ("neuron()", "the number of ranks is missing: neuron(ranks=4), or parametrise*world_size"),
        ("neuron(4)", "options are named, as in neuron(ranks=4)"),
        ("neuron(ranks=0)", "ranks is 0, expected a whole number from 1 up"),
        ("neuron(ranks=2, cluster='trn2.48xlrge')", "cluster: *trn2.48xlrge*trn2.48xlarge*"),
        ("neuron(ranks=2, backend='nuron')", "there is no backend 'nuron'; did you mean 'neuron'?"),
        ("neuron(ranks=2, device='nueron')", "there is no device 'nueron'; did you mean 'neuron'?"),
        ("neuron(ranks=2, timeout='5')", "timeout is '5', expected seconds"),
        ("neuron(ranks=2, env={'A': 1})", "env is {'A': 1}, expected a dict of strings"),
        ("neuron(ranks=4, mesh=(2, 3))", "mesh (2, 3) has 6 places for 4 ranks"),
        ("neuron(ranks=4, mesh=4)", "mesh is 4, expected the sizes of its axes, as in (2, 2)"),
        ("neuron(ranks=4, mesh_dim_names='dp')", "mesh_dim_names is 'dp', expected one name for each axis*"),
        ("neuron(ranks=4, mesh_dim_names=('dp', 'tp'))", "mesh_dim_names*names 2 axes of a mesh of 1"),
    ],
)  # fmt: skip
def test_wrong_marks_are_refused_when_collected(pytester, mark, complaint):
    pytester.makepyfile(test_it=f"import pytest, torch\n@pytest.mark.{mark}\ndef test_it(): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*test_it.py::test_it: mark neuron: {_escaped(complaint)}"])


def _escaped(pattern):
    return pattern.replace("[", "[[]")


def test_unittest_methods_are_refused(pytester):
    pytester.makepyfile(
        """
        import pytest, unittest

        class TestIt(unittest.TestCase):
            @pytest.mark.neuron(ranks=2)
            def test_it(self): pass
        """
    )
    result = pytester.runpytest_inprocess()
    result.stderr.fnmatch_lines(["*mark neuron is for test functions*this is a TestCaseFunction*"])


def test_fixtures_need_the_mark(pytester):
    pytester.makepyfile("def test_it(rank): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["fixture 'rank' is for tests that run in ranks: mark the test*"])


def test_a_run_without_marks_does_not_import_torch(inner):
    inner.makepyfile(
        """
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("neuron_dist")
            assert not {"torch", "numpy", "neuron_dist", "collectives"} & set(sys.modules)
        """
    )
    inner.runpytest_subprocess("--strict-markers").assert_outcomes(passed=1)


def test_can_be_switched_off(inner):
    inner.makepyfile("import pytest\n@pytest.mark.neuron(ranks=2)\ndef test_it(rank): pass")
    result = inner.runpytest_subprocess("-p", "no:neuron_dist", "--strict-markers")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'neuron' not found in `markers` configuration option"])
