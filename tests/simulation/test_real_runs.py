"""Traces and ledgers of real ranks: the analysis, the page and the Chrome trace agree with the native core."""

import json

import pytest

from neuron_dist import _C
from neuron_dist.simulation import chrome, report
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.ledger import figures_of
from neuron_dist.simulation.links import link_use
from neuron_dist.simulation.summary import ten_lines
from neuron_dist.simulation.trace import Kind, read
from neuron_dist.testing import run_ranks
from tests.simulation import runs
from tests.simulation.test_report import Page
from tests.simulation.trace_event import check

STEPPING = ("fsdp", "ddp")
"""Those of the programs that have an optimizer, whose steps are the run's."""


def with_ledger(name):
    """Runs a program of :mod:`tests.simulation.runs` and returns all ranks' ledgers, as one rank sees them."""
    import torch.distributed as dist

    getattr(runs, name)()
    dist.barrier()
    return _C._figures()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Program -> (traces, ledgers); each runs once."""
    made = {}

    def run_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            ledgers = run_ranks(4, with_ledger, name, env={"NEURON_DIST_TRACE": str(folder)})[0]
            made[name] = read(folder), ledgers
        return made[name]

    return run_of


@pytest.mark.parametrize("name", STEPPING)
def test_splits_are_the_step_records_own(recorded, name):
    traces, _ = recorded(name)
    found = analyse(traces)
    assert not found.notes and len(found.figures.steps) == 3
    for trace in traces:
        records = [
            tuple(int(r[f]) for f in ("a", "start_ns", "end_ns", "b", "c", "d", "e"))
            for r in trace.of(Kind.STEP)
        ]
        own = [
            (s.step, s.start_ns, s.end_ns, s.compute_ns, s.exposed_ns, s.overlapped_ns, s.flops)
            for s in found.figures.ranks
            if s.rank == trace.rank
        ]
        assert own == records


@pytest.mark.parametrize("name", STEPPING)
def test_the_ledger_gives_the_figures_of_the_trace(recorded, name):
    traces, ledgers = recorded(name)
    found = analyse(traces).figures
    figures = figures_of(sorted(ledgers, key=lambda f: f["rank"]), found.cluster)
    assert [s for s in figures.ranks if s.step in found.steps] == list(found.ranks)
    assert figures.overall == found.overall
    moved = {}
    for step in found.steps:
        for row in analyse(traces, step).figures.traffic:
            key = (row.op, row.algorithm, row.ranks, row.root)
            moved[key] = moved.get(key, 0) + row.count
    counted = {}
    for row in figures.traffic:
        key = (row.op, row.algorithm, row.ranks, row.root)
        counted[key] = counted.get(key, 0) + row.count
    assert set(moved) <= set(counted)
    assert all(
        counted[key] >= count for key, count in moved.items()
    )  # it also has what was before and after steps
    assert link_use(figures).hot is not None
    lines = ten_lines(figures).splitlines()
    assert 8 <= len(lines) <= 10 and "none was written" in lines[-1]


@pytest.mark.parametrize("name", STEPPING)
def test_hbm_over_time_is_what_is_in_use(recorded, name):
    hbm = analyse(recorded(name)[0]).hbm
    assert (
        hbm.allocated.min() > 0 and hbm.allocated.max() <= hbm.peak_bytes < 2 * hbm.allocated.max()
    )
    assert sum(h.nbytes for h in hbm.holders) == hbm.peak_bytes
    assert {"parameters", "optimizer state"} <= {h.name for h in hbm.holders}


@pytest.mark.parametrize("name", [*STEPPING, "mixture", "unequal"])
def test_page_and_chrome_trace(recorded, name, tmp_path):
    traces, _ = recorded(name)
    found = analyse(traces)
    page = Page(report.render(found))
    assert "Simulated run on trn2.48xlarge (LNC 2), 4 ranks" in page.text
    assert all(ord(c) >= 32 or c in "\n\t" for c in page.text)
    chrome.write(tmp_path / "trace.json", found)
    check(json.loads((tmp_path / "trace.json").read_text()))
