"""Figures of a ledger, without a trace: the ten lines and the hot link."""

import numpy as np
import pytest

from collectives import load_cluster, plan
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.figures import RankStep, RunFigures, Traffic
from neuron_dist.simulation.links import link_use
from neuron_dist.simulation.replay import step_times
from neuron_dist.simulation.summary import ten_lines
from neuron_dist.simulation.trace import read
from tests.simulation.training_runs import Program, fsdp_run

CLUSTER = load_cluster(instances=2)


def ledger(**changes):
    """Two ranks and two steps, as the native core's ledger gives them."""
    steps = [
        RankStep(
            rank,
            step,
            1000 * step,
            1000 * (step + 1),
            600 + 2 * rank,
            300,
            100,
            10**8,
            2**30 + rank,
        )
        for step in (1, 2, 3)
        for rank in (0, 1)
    ]
    traffic = [Traffic((64, 80), "", "all_reduce", "ring", 0, 4, 4 << 20, 400)]
    fields = dict(
        cluster=CLUSTER, world_size=2, ranks=tuple(steps), traffic=tuple(traffic), traffic_ns=10**6,
        traffic_steps=0, hbm_bytes=CLUSTER.hbm_bytes_per_core,
    )  # fmt: skip
    return RunFigures(**{**fields, **changes})


def test_a_ledger_is_enough_for_the_summary():
    lines = ten_lines(ledger()).splitlines()
    assert len(lines) <= 10
    text = {line[:13].strip(): line[13:] for line in lines}
    assert text["simulated"] == "2 x trn2.48xlarge (LNC 2), 2 ranks"
    assert text["split"] == "60.1 % compute, 30.0 % exposed communication, 9.9 % idle"
    assert text["step time"] == "1 us (mean of steps 2 to 3; the first is left out)"
    assert text["HBM peak"] == "1.00 GiB of 24 GiB (4.2 %), rank 1"
    assert text["slowest"] == "all_reduce on 2 ranks (ring): 400 ns in 4 calls"
    assert text["hot link"].startswith("instance 1 ")
    assert text["fidelity"] == "0 reports" and text["trace"] == "none was written"


def test_a_run_without_steps_or_traffic_says_so():
    lines = ten_lines(ledger(ranks=(), traffic=())).splitlines()
    assert [line.split()[0] for line in lines] == ["simulated", "step", "fidelity", "trace"]
    assert "no step has ended" in lines[1]


def test_ten_lines_of_a_trace(analysis):
    lines = ten_lines(analysis.figures).splitlines()
    assert len(lines) == 10 and all(len(line) < 100 for line in lines)
    assert (
        "7 reports at 1 site" in lines[8]
        and f"neuron-dist report {analysis.figures.trace}" in lines[9]
    )
    assert "all_reduce on mesh_tp (ring)" in lines[6] and "a step in 8 calls" in lines[6]


def test_links_are_of_the_ranks_that_ran():
    use = link_use(ledger())
    own = plan("all_reduce", 4 << 20, [0, 16], CLUSTER, algorithm="ring").price.bytes_by_link
    half = len(own) // 2
    assert not use.nbytes[:half].any()  # ranks 64 and 80 are of the second instance
    assert np.array_equal(use.nbytes[half:], own[:half])
    assert use.shares.max() == pytest.approx(use.busy_ns.max() / 10**6)


def test_links_of_a_trace_are_the_sum_of_its_collectives(tmp_path):
    program = Program(tmp_path, 80, cluster=CLUSTER)
    program.group("mesh_dp", [[0, 4, 8, 12], [64, 68, 72, 76]])
    for nbytes in (1 << 20, 3 << 19, 5 << 22):
        program.wait(program.collective("all_gather", "mesh_dp", nbytes, algorithm="ring"))
    program.wait(program.message(0, 70, 1 << 16))
    program.step()
    found = analyse(read(program.close()))
    expected = np.zeros_like(found.links.nbytes)
    for nbytes in (1 << 20, 3 << 19, 5 << 22):
        one = plan(
            "all_gather", nbytes, [0, 4, 8, 12], CLUSTER, algorithm="ring"
        ).price.bytes_by_link
        expected += one + np.roll(one, len(one) // 2)
    expected += plan("send", 1 << 16, [0, 70], CLUSTER).price.bytes_by_link
    assert np.array_equal(found.links.nbytes, expected)
    assert (
        found.links.name(found.links.hot)
        == found.links.topology.link_names[int((expected / found.links.topology.link_Bps).argmax())]
    )


def test_an_algorithm_of_the_program_alone_is_left_out_by_name():
    rows = (
        Traffic((0, 1), "mesh_tp", "all_reduce", "mine", 0, 1, 1 << 20, 100),
        Traffic((0,), "", "barrier", "none", 0, 1, 0, 0),
    )
    use = link_use(ledger(traffic=rows))
    assert use.unknown == ("mine",) and use.hot is None


def test_a_step_lasts_from_last_end_to_last_end(tmp_path):
    found = analyse(read(fsdp_run(tmp_path, ranks=2, tp=1, steps=3, slow=2)))
    for number, step in found.figures.steps.items():
        ends = [r.end_ns for r in found.figures.ranks if r.step == number]
        before = [r.end_ns for r in found.figures.ranks if r.step == number - 1]
        assert step.step_ns == max(ends) - max(before, default=0)
        assert step.skew_ns == max(ends) - min(ends)
    times = [s.time_ns for s in step_times(found.traces)]
    assert times == [s.step_ns for s in found.figures.steps.values()]
