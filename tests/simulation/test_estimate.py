"""A step's formula: who is in which group, what shares links, and that its parts add up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import plan
from collectives.topology import ClusterError, load_cluster, topology_of
from neuron_dist.simulation.estimate import (
    Charge,
    Job,
    Layout,
    Stage,
    concurrently_ns,
    estimate,
    program_ns,
)
from neuron_dist.simulation.program import Exchange, Operator, Program
from neuron_dist.simulation.roofline import Roofline

TRN1 = load_cluster("trn1.32xlarge", instances=4)
TRN2 = load_cluster("trn2.48xlarge")
MI = 1 << 20

sizes = st.integers(1, 6)


@given(sizes, sizes, sizes)
def test_groups_hold_every_rank_once(tp, dp, pp):
    layout = Layout(tp, dp, pp)
    for groups, size in ((layout.tensor_groups, tp), (layout.data_groups, dp)):
        assert {len(g) for g in groups} == {size}
        assert sorted(r for g in groups for r in g) == list(range(tp * dp * pp))
    assert all(g == tuple(range(g[0], g[0] + tp)) for g in layout.tensor_groups)
    pairs = layout.pipeline_pairs
    assert len(pairs) == tp * dp * (pp - 1)
    assert all(b - a == tp * dp for a, b in pairs)


def test_ranks_are_placed_as_nxd_does():
    layout = Layout(tp=2, dp=3, pp=2)
    assert layout.tensor_groups[:2] == [(0, 1), (2, 3)]
    assert layout.data_groups == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11)]
    assert layout.pipeline_pairs[0] == (0, 6)


def test_a_group_alone_costs_its_plan():
    group = tuple(range(32))
    assert concurrently_ns("all_gather", 64 * MI, [group], TRN1) == pytest.approx(
        plan("all_gather", 64 * MI, group, TRN1).time_ns
    )
    assert concurrently_ns("all_gather", 64 * MI, [(3,), (4,)], TRN1) == 0.0


def test_groups_on_other_links_do_not_wait():
    for layout in (Layout(tp=8, dp=16), Layout(tp=32, dp=4)):  # rows of chips, instances
        groups = layout.tensor_groups
        alone = plan("reduce_scatter", 64 * MI, groups[0], TRN1).time_ns
        assert concurrently_ns("reduce_scatter", 64 * MI, groups, TRN1) == pytest.approx(alone)


@given(st.sampled_from([1, 64 * MI]), st.integers(1, 32))
def test_groups_on_the_same_links_share_them(nbytes, count):
    groups = Layout(tp=32, dp=4).data_groups[:count]  # one rank an instance
    each = plan("all_gather", nbytes, groups[0], TRN1)
    together = concurrently_ns("all_gather", nbytes, groups, TRN1)
    assert together >= each.time_ns * (1 - 1e-9)
    topology = topology_of(TRN1)
    carried = max(each.price.bytes_by_link)
    sharing = min(count, 4)  # two chips of two cores use one EFA
    efa = topology.link_Bps[topology.efa_out[0]]
    expected = each.time_ns + (sharing - 1) * carried / efa * 1e9
    assert together == pytest.approx(expected, rel=1e-6)


def test_sends_between_stages_share_the_efa():
    pairs = Layout(tp=32, dp=1, pp=2).pipeline_pairs
    one = concurrently_ns("send", MI, pairs[:1], TRN1)
    assert concurrently_ns("send", MI, pairs, TRN1) > 2 * one
    with pytest.raises(ClusterError, match="no core for rank 128"):
        concurrently_ns("send", MI, [(0, 128)], TRN1)


OPERATORS = Program(
    [
        Operator("mm", 10**12, 10**6, "bfloat16"),
        Operator("mm", 10**6, 10**8, "float32"),
        Operator("attention", 10**12, 10**6, "bfloat16", causal=True),
        Operator("add", 0, 10**8, "bfloat16"),
    ]
)


def test_what_each_charge_counts():
    roofline = Roofline.of(TRN2)
    flops_ns = 1e12 / 158e12 * 1e9
    bytes_ns = 1e8 / (2.9e12 / 4) * 1e9
    tensor = program_ns(OPERATORS, roofline, Charge.TENSOR)
    assert tensor == pytest.approx(1.5 * flops_ns + 1e6 / 40e12 * 1e9)
    assert program_ns(OPERATORS, roofline, Charge.MATMUL) == pytest.approx(2 * flops_ns + bytes_ns)
    eager = program_ns(OPERATORS, roofline, Charge.EAGER)
    assert eager == pytest.approx(2 * flops_ns + 2 * bytes_ns + 4 * roofline.launch_ns, abs=2)
    assert eager == sum(
        roofline.duration_ns(o.flops, o.nbytes, o.dtype) for o in OPERATORS.operators
    )


def a_job(stages, micro_batches=4, **options):
    layout = options.pop("layout", Layout(1, 1, len(stages)))
    return Job(layout, tuple(stages), micro_batches, layout.dp * micro_batches, **options)


@given(st.integers(1, 8), st.integers(1, 64))
def test_the_bubble_of_1f1b(p, m):
    step = estimate(a_job([Stage(((OPERATORS, 3),))] * p, m), TRN2, Charge.TENSOR)
    stage_ns = 3 * program_ns(OPERATORS, Roofline.of(TRN2), Charge.TENSOR)
    sends_ns = 2 * concurrently_ns("send", 0, Layout(1, 1, p).pipeline_pairs, TRN2)
    assert step.total_ns == pytest.approx((m + p - 1) * (stage_ns + sends_ns))
    assert step.bubble_ns / step.total_ns == pytest.approx((p - 1) / (m + p - 1))


def test_the_slowest_stage_sets_the_pace():
    short, long = Stage(((OPERATORS, 1),)), Stage(((OPERATORS, 2),))
    step = estimate(a_job([short, long], 10), TRN2, Charge.TENSOR)
    one = program_ns(OPERATORS, Roofline.of(TRN2), Charge.TENSOR)
    sends = 2 * concurrently_ns("send", 0, [(0, 1)], TRN2)
    assert step.compute_ns == pytest.approx(20 * one)
    assert step.bubble_ns == pytest.approx(one + sends)
    assert step.pipeline_ns == pytest.approx(10 * sends)


def test_a_step_adds_up():
    program = Program(OPERATORS.operators, [Exchange("all_gather", MI), Exchange("all_gather", MI)])
    fused = Program([Operator("adamw", 0, 10**6, "float32")])
    job = a_job(
        [Stage(((program, 2),))] * 2,
        layout=Layout(4, 8, 2),
        boundary_bytes=MI,
        reduce_bytes=64 * MI,
        gather_bytes=32 * MI,
        optimizer=fused * 5,
        optimizer_fused=fused,
    )
    groups = job.layout.data_groups
    steps = {charge: estimate(job, TRN2, charge) for charge in Charge}
    for charge, step in steps.items():
        assert step.total_ns == pytest.approx(math.fsum(step.parts.values()))
        assert step.tensor_parallel_ns == pytest.approx(
            4 * 4 * concurrently_ns("all_gather", MI, job.layout.tensor_groups, TRN2)
        )
        assert step.data_parallel_ns == pytest.approx(
            concurrently_ns("reduce_scatter", 64 * MI, groups, TRN2)
            + concurrently_ns("all_gather", 32 * MI, groups, TRN2)
        )
        one = Roofline.of(TRN2).duration_ns(0, 10**6)
        assert step.optimizer_ns == one * (5 if charge is Charge.EAGER else 1)
        assert step.parts[step.dominant] == max(step.parts.values())
    assert (
        steps[Charge.TENSOR].total_ns < steps[Charge.MATMUL].total_ns < steps[Charge.EAGER].total_ns
    )
    assert steps[Charge.EAGER].compute_ns == 8 * program_ns(
        program, Roofline.of(TRN2), Charge.EAGER
    )


def test_without_zero1_gradients_are_all_reduced():
    job = a_job([Stage(((OPERATORS, 1),))], layout=Layout(1, 4), reduce_bytes=MI)
    step = estimate(job, TRN2, Charge.TENSOR)
    assert step.data_parallel_ns == concurrently_ns("all_reduce", MI, [(0, 1, 2, 3)], TRN2)


def test_another_roofline_changes_compute_alone():
    program = Program(OPERATORS.operators, [Exchange("all_reduce", MI)])
    job = a_job([Stage(((program, 1),))], layout=Layout(4, 1))
    usual = estimate(job, TRN2, Charge.TENSOR)
    twice = estimate(job, TRN2, Charge.TENSOR, Roofline.of(TRN2).faster(2))
    assert twice.compute_ns == pytest.approx(usual.compute_ns / 2)
    assert twice.tensor_parallel_ns == usual.tensor_parallel_ns > 0


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="the job has 1 stages, expected one for each of pp=2"):
        estimate(a_job([Stage(())], layout=Layout(1, 1, 2)), TRN2, Charge.TENSOR)
    job = a_job([Stage(())], layout=Layout(1, 65), reduce_bytes=1)
    with pytest.raises(ClusterError, match=r"the job has 65 ranks, .* 64 cores"):
        estimate(job, TRN2, Charge.TENSOR)
