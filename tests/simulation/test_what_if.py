"""What-if rows: each against a number that follows from the run."""

import pytest

from collectives import load_cluster, plan
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.what_if import step_ns, what_if, with_parameters
from tests.simulation.online import Online, rounded

BYTES = 64 << 20
FLOPS = 10**11


def run(folder, ranks, steps=2, cluster=None):
    """Each step: an operator, then an all_gather in all groups at once."""
    online = Online(folder, 1 + max(map(max, ranks)), ranks, cluster)
    for step in range(steps):
        works = {}
        for g, members in enumerate(online.groups):
            for rank in members:
                online.kernel(rank, 0, flops=FLOPS)
                works[rank] = online.call(rank, g, "all_gather", BYTES)
        for rank in range(len(online.host)):
            if rank in works:
                online.work_wait(rank, 0, works[rank])
            online.step(rank, step)
    return online.traces()


def rows(*args, **options):
    return {row.name: row.step_ns for row in what_if(*args, **options)}


def test_rows(tmp_path):
    traces = run(tmp_path, [[0, 4], [1, 5]])
    cluster = load_cluster()
    found = rows(traces)
    assert "EFA 2 times faster" not in found  # there is one instance
    p = plan("all_gather", BYTES, [0, 4], cluster)
    alone, latency = rounded(p.time_ns), rounded(p.ready.pricer.price(0).time_ns)
    launch, compute = 1300, FLOPS * 1e9 / (20e12 * 2)
    shared = latency + 2 * (alone - latency)
    assert found == pytest.approx(
        {
            "replayed": launch + compute + shared,
            "no contention": launch + compute + alone,
            "NeuronLink 2 times faster": launch + compute + latency + (shared - latency) / 2,
            "DMA inside a chip 2 times faster": launch + compute + shared,
            "compute and HBM 2 times faster": launch + compute / 2 + shared,
            "no latency of collectives": launch + compute + shared - latency,
            "no launch and dispatch": compute + shared,
            "no exposed communication": launch + compute,
        },
        abs=2,
    )


def test_of_a_run_without_contention(tmp_path):
    traces = run(tmp_path, [[0, 4], [1, 5]])
    found = rows(traces, contended=False)
    assert "no contention" not in found
    assert found["replayed"] == step_ns(replay(traces, contended=False))


def test_the_factor(tmp_path):
    cluster = load_cluster(instances=2)
    traces = run(tmp_path, [[0, 64]], cluster=cluster)
    found = rows(traces, factor=1.0)
    assert {
        found[f"{part} 1 times faster"] for part in ("NeuronLink", "EFA", "compute and HBM")
    } == {found["replayed"]}
    fast = rows(traces, factor=4)
    latency = plan("all_gather", BYTES, [0, 64], cluster).ready.pricer.price(0).time_ns
    fixed = 1300 + FLOPS * 1e9 / (20e12 * 2) + latency
    assert fast["EFA 4 times faster"] - fixed == pytest.approx(
        (fast["replayed"] - fixed) / 4, abs=2
    )
    with pytest.raises(ValueError, match="factor is 0, expected a number above 0"):
        what_if(traces, factor=0)


def test_a_run_without_steps(tmp_path):
    online = Online(tmp_path, 5, [[0, 4]])
    for rank in (0, 4):
        online.kernel(rank, flops=FLOPS)
        online.call(rank, 0, "all_gather", BYTES)
    traces = online.traces()
    found = rows(traces)
    makespan = replay(traces).makespan_ns
    kernel = online.roofline.duration_ns(FLOPS, 0)
    assert (
        found["replayed"]
        == makespan
        == kernel + rounded(plan("all_gather", BYTES, [0, 4], load_cluster()).time_ns)
    )
    # the ranks without work have nothing to hide
    assert found["no exposed communication"] == makespan


def test_another_cluster_keeps_its_own_choice_of_algorithms(tmp_path):
    traces = run(tmp_path, [list(range(8))])
    other = load_cluster("trn1.32xlarge")
    assert rows(traces, other)["replayed"] == step_ns(replay(traces, other))
    assert rows(traces, other, factor=1.0)["compute and HBM 1 times faster"] == step_ns(
        replay(traces, other)
    )


def test_parameters():
    cluster = load_cluster()
    changed = with_parameters(cluster, hop_ns=0.0)
    assert changed.parameters["hop_ns"] == 0 and cluster.parameters["hop_ns"] == 1500
    assert changed != cluster and changed.digest == f"{cluster.digest},hop_ns=0.0"
    with pytest.raises(KeyError, match="no parameter 'hop'"):
        with_parameters(cluster, hop=0.0)
