"""The numbers of a run equal what its ranks recorded, and each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import load_cluster, plan
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.figures import WHOLE_RUN, mean
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import Kind, TraceError, read
from tests.simulation.training_runs import Program, fsdp_run, rounded


def recorded(trace):
    """(step, compute, exposed, overlapped, flops, peak) of each STEP record."""
    return [
        tuple(int(r[f]) for f in ("a", "b", "c", "d", "e", "allocated"))
        for r in trace.of(Kind.STEP)
    ]


def analysed(analysis, rank):
    return [
        (s.step, s.compute_ns, s.exposed_ns, s.overlapped_ns, s.flops, s.peak_bytes)
        for s in analysis.figures.ranks
        if s.rank == rank
    ]


def test_splits_are_the_step_records_own(traces, analysis):
    for trace in traces:
        assert recorded(trace) == analysed(analysis, trace.rank)
        assert len(recorded(trace)) == 3
    assert any(s.exposed_ns and s.overlapped_ns and s.idle_ns for s in analysis.figures.ranks)


def test_parts_add_up_to_the_step(analysis):
    for step in [*analysis.figures.steps.values(), analysis.figures.overall]:
        assert step.compute_ns + step.exposed_ns + step.idle_ns == pytest.approx(step.step_ns)
    for rank in analysis.figures.ranks:
        assert rank.compute_ns + rank.exposed_ns + rank.idle_ns == rank.span_ns
        assert rank.overlapped_ns <= rank.compute_ns


def test_flops_and_mfu_are_those_of_the_kernels(traces, analysis):
    kernels = [t.of(Kind.KERNEL) for t in traces]
    assert sum(int(k["a"].sum()) for k in kernels) == sum(
        s.flops for s in analysis.figures.steps.values()
    )
    step = analysis.figures.steps[2]
    peak = Roofline.of(load_cluster()).peak_flops
    assert step.mfu == pytest.approx(step.flops / (4 * step.step_ns * 1e-9 * peak))
    assert analysis.figures.overall.mfu == pytest.approx(
        sum(analysis.figures.steps[s].flops for s in (2, 3))
        / (4 * sum(analysis.figures.steps[s].step_ns for s in (2, 3)) * 1e-9 * peak)
    )


def test_the_first_step_is_left_out_and_said_so(traces, analysis):
    assert analysis.figures.counted == (2, 3)
    assert analysis.figures.counted_text == "mean of steps 2 to 3; the first is left out"
    assert not [c for c in analysis.collectives if c.op == "broadcast"]
    first = analyse(traces, step=1)
    assert first.figures.counted == (1,) and first.figures.counted_text == "step 1 alone"
    assert [c.count for c in first.collectives if c.op == "broadcast"] == [1]


def test_a_step_that_is_not_there_is_named(traces):
    with pytest.raises(TraceError, match=r"there is no step 7, .*1 to 3"):
        analyse(traces, step=7)


def test_collectives_count_each_call_once_with_nccom_tests_bandwidths(analysis):
    rows = {(c.op, c.label): c for c in analysis.collectives}
    gather = rows["all_gather", "mesh_dp"]
    assert (gather.groups, gather.size, gather.steps, gather.count, gather.calls) == (
        2,
        2,
        2,
        32,
        8,
    )
    assert gather.nbytes == 32 * (1 << 20)
    one = plan("all_gather", 1 << 20, [0, 2], analysis.cluster)
    assert gather.time_ns == 32 * rounded(one.time_ns) and gather.algorithm == one.algorithm
    assert gather.algbw_Bps == pytest.approx((1 << 20) / (rounded(one.time_ns) * 1e-9))
    assert gather.busbw_Bps == pytest.approx(gather.algbw_Bps / 2)
    reduce = rows["all_reduce", "default_pg"]
    assert reduce.busbw_Bps == pytest.approx(reduce.algbw_Bps * 6 / 4)
    send = rows["send", "default_pg"]
    assert (send.count, send.groups, send.size, send.busbw_Bps) == (2, 1, 2, send.algbw_Bps)
    assert ("recv", "default_pg") not in rows


def test_axes_hold_all_collectives_of_their_label(analysis):
    axes = {a.label: a for a in analysis.axes}
    assert set(axes) == {"mesh_tp", "mesh_dp", "default_pg"}
    assert axes["mesh_dp"].count == 8 + 4 and axes["mesh_dp"].groups == 2
    assert axes["mesh_dp"].nbytes == 12 * (1 << 20)
    assert axes["mesh_tp"].exposed_ns == axes["mesh_tp"].busy_ns  # always waited for at once
    assert 0 < axes["mesh_dp"].exposed_ns < axes["mesh_dp"].busy_ns  # prefetched


def test_the_slow_rank_is_the_critical_one(analysis):
    assert analysis.critical_rank == 3
    assert analysis.ranks[3].early_ns == 0
    assert analysis.ranks[3].compute_ns > analysis.ranks[0].compute_ns


def test_operators_and_what_bounds_them(analysis):
    rows = {k.name: k for k in analysis.kernels}
    assert analysis.kernels[0].name == "aten::mm" and rows["aten::mm"].count == 2 * 4 * 8
    assert rows["aten::mm"].bound == "flops" and rows["aten::silu"].bound == "HBM"
    assert rows["aten::copy_"].bound == "launch"
    total = sum(s.compute_ns for s in analysis.figures.ranks if s.step > 1)
    assert sum(k.time_ns for k in analysis.kernels) == total  # one stream computes


def test_fidelity_reports_are_joined_over_ranks(analysis):
    (site,) = analysis.sites
    assert (site.rule, site.site, site.count, site.ranks) == ("float64", "train.py:41", 7, (0, 1))
    assert (analysis.figures.reports, analysis.figures.sites) == (7, 1)


def test_hbm_peak_and_holders(analysis):
    hbm = analysis.hbm
    assert hbm.capacity_bytes == load_cluster().hbm_bytes_per_core
    assert sum(h.nbytes for h in hbm.holders) == hbm.peak_bytes == int(hbm.allocated.max())
    assert [h.name for h in hbm.holders][:2] == ["activations", "optimizer"]
    assert np.all(np.diff(hbm.times_ns) >= 0)


def test_a_run_without_steps_is_one(tmp_path):
    program = Program(tmp_path, 2)
    program[0].kernel("aten::mm", flops=10**9)
    program.wait(program.collective("all_reduce", "default_pg", 1 << 20))
    found = analyse(read(program.close()))
    assert found.figures.counted == (WHOLE_RUN,) and found.figures.counted_text == "the whole run"
    assert "no step was marked" in found.notes[0]
    assert found.collectives[0].count == 1 and found.figures.overall.flops == 10**9
    with pytest.raises(TraceError, match=r"there is no step 1, .* none"):
        analyse(found.traces, step=1)


def test_a_step_that_one_rank_did_not_end_is_left_out(tmp_path):
    program = Program(tmp_path, 2)
    for _ in range(2):
        for rank in program.ranks:
            rank.kernel("aten::mm", flops=10**9)
        program.step()
    program[0].kernel("aten::mm", flops=10**9)
    program[0].step()
    found = analyse(read(program.close()))
    assert list(found.figures.steps) == [1, 2]
    assert found.notes == ["step 3 left out: not all ranks have ended it"]


def test_a_cluster_that_has_changed_is_noted(tmp_path):
    from dataclasses import replace

    program = Program(tmp_path, 1, cluster=replace(load_cluster(), digest="0123"))
    program[0].kernel("aten::mm", flops=10**9)
    program.step()
    (note,) = analyse(read(program.close())).notes
    assert "digest 0123" in note and load_cluster().digest in note


def test_a_product_that_has_gone_is_named(tmp_path):
    from dataclasses import replace

    program = Program(tmp_path, 1, cluster=replace(load_cluster(), product="trn2.47xlarge"))
    program.step()
    with pytest.raises(TraceError, match=r"rank_00000.trace: .*did you mean 'trn2.48xlarge'"):
        analyse(read(program.close()))


def test_one_rank_alone(tmp_path):
    found = analyse(read(fsdp_run(tmp_path, ranks=1, tp=1, steps=2, pipeline=False)))
    assert found.links.hot is None and found.critical_rank == 0
    assert all(c.algbw_Bps is None for c in found.collectives)  # groups of one rank take no time


CALLS = st.one_of(
    st.tuples(st.just("kernel"), st.integers(0, 3), st.integers(0, 1), st.integers(1, 40)),
    st.tuples(st.just("collective"), st.sampled_from(["default_pg", "mesh_dp", "mesh_tp"]), st.integers(-1, 1), st.integers(0, 22)),
    st.tuples(st.just("message"), st.integers(0, 3), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("wait")),
    st.tuples(st.just("step")),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(CALLS, min_size=1, max_size=30))
def test_any_program_splits_as_its_ranks_recorded(tmp_path_factory, calls):
    program = Program(tmp_path_factory.mktemp("any"), 4)
    program.group("mesh_dp", [[0, 2], [1, 3]])
    program.group("mesh_tp", [[0, 1], [2, 3]])
    open_works = []

    def end_step():
        """All that was begun is waited for, so that nothing of the next step can be before the end of this one."""
        for works in open_works:
            program.wait(works, stream=-1)
        open_works.clear()
        for rank in program.ranks:
            for stream in (0, 1):
                rank.synchronize(stream)
        program.step()

    for what, *rest in calls:
        if what == "kernel":
            rank, stream, millions = rest
            program[rank].kernel("aten::mm", flops=millions * 10**6, nbytes=10**4, stream=stream)
        elif what == "collective":
            label, stream, power = rest
            open_works.append(program.collective("all_reduce", label, 1 << power, stream=stream))
        elif what == "message":
            source, step, eager = rest
            open_works.append(program.message(source, (source + step) % 4, 4096, eager=eager))
        elif what == "wait" and open_works:
            program.wait(open_works.pop())
        elif what == "step":
            end_step()
    end_step()
    traces = read(program.close())
    found = analyse(traces)
    for trace in traces:
        assert recorded(trace) == analysed(found, trace.rank)
    sums = found.figures.overall
    assert sums.compute_ns + sums.exposed_ns + sums.idle_ns == pytest.approx(sums.step_ns)
    whole = mean(list(found.figures.steps.values()))
    assert 0 <= whole.idle_ns <= whole.step_ns and 0 <= whole.mfu <= 1.01
    moved = sum(c.count for c in found.collectives)
    issued = sum(1 for call in calls if call[0] in ("collective", "message"))
    assert moved <= 2 * issued
