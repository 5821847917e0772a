"""Runs of real ranks, whose native clock the replay must agree with, on the run's cluster and on another one."""

import numpy as np
import pytest

from collectives.topology import load_cluster
from neuron_dist import _C
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.trace import Kind, read
from neuron_dist.testing import run_ranks
from tests.simulation import runs


def record(folder, fn, *args, cluster=None, **options):
    env = {"NEURON_DIST_TRACE": str(folder)} | ({"NEURON_DIST_CLUSTER": cluster} if cluster else {})
    run_ranks(4, fn, *args, env=env, **options)
    return read(folder)


def alike(expected, found, *kinds):
    for want, got in zip(expected, found, strict=True):
        one, two = (t.of(*(kinds or Kind)) for t in (want, got))
        assert len(one) == len(two)
        wrong = np.flatnonzero(
            (one["start_ns"] != two["start_ns"]) | (one["end_ns"] != two["end_ns"])
        )
        assert not len(wrong), (want.rank, one[wrong[0]], two[wrong[0]])
        for field in "bcd":  # the parts of steps
            steps = (want.of(Kind.STEP), got.of(Kind.STEP))
            assert steps[0][field].tolist() == steps[1][field].tolist()


@pytest.mark.parametrize("program", [runs.fsdp, runs.ddp, runs.mixture, runs.unequal])
def test_the_clock_of_the_run(tmp_path, program):
    traces = record(tmp_path, program)
    result = replay(traces, contended=False)
    assert not result.unfinished and not result.notes
    alike(traces, result.traces)
    shared = replay(traces)
    assert not shared.unfinished
    assert shared.makespan_ns >= result.makespan_ns


@pytest.mark.parametrize(
    ("program", "args"),
    [(runs.fsdp, ()), (runs.ddp, ()), (runs.mixture, (3, False)), (runs.unequal, ())],
)
def test_another_cluster_is_as_if_the_run_had_been_there(tmp_path, program, args):
    here = record(tmp_path / "here", program, *args)
    there = record(tmp_path / "there", program, *args, cluster="trn1.32xlarge")
    result = replay(here, load_cluster("trn1.32xlarge"), contended=False)
    for want, got in zip(
        there, result.traces, strict=True
    ):  # sorted: when ends are noticed is the machine's
        fields = ["kind", "stream", "start_ns", "end_ns"]
        assert sorted(want.records[fields].tolist()) == sorted(got.records[fields].tolist())


def test_dispatch_that_takes_time(tmp_path):
    eager = tmp_path / "eager.yaml"
    eager.write_text(
        "product: eager\nextends: trn2.48xlarge\nassumptions: {dispatch_ns: {value: 60000, source: a test}}\n"
    )
    traces = record(tmp_path / "run", runs.fsdp, cluster=str(eager))
    alike(traces, replay(traces, contended=False).traces)  # the header names the file


def test_a_rank_that_was_killed(tmp_path):
    env = {"NEURON_DIST_TRACE": str(tmp_path)}
    run_ranks(4, runs.killed, env=env, expect_dead=[1], return_exceptions=True)
    traces = read(tmp_path)
    result = replay(traces, contended=False)
    assert {u.rank for u in result.unfinished} == {0, 2, 3}
    for unfinished in result.unfinished:
        assert (
            unfinished.waits_for.startswith("all_reduce")
            and unfinished.because == "rank 1 never called it"
        )
    alike(traces, result.traces)


@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 1000, 4097, 123456789, 1 << 40])
def test_sizes_by_which_schedules_are_chosen_and_priced(nbytes):
    """An eighth of an octave, down; uneven sizes a sixteenth, up."""
    eighth = 1 << max(nbytes.bit_length() - 4, 0)
    sixteenth = 1 << max(nbytes.bit_length() - 5, 0)
    assert _C.size_class(nbytes) == nbytes // eighth * eighth
    assert _C.rounded_up(nbytes) == -(-nbytes // sixteenth) * sixteenth
