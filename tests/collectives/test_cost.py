"""Prices: the facts that AWS states, out of the routed schedules."""

import numpy as np
import pytest

from collectives.algorithms import lookup
from collectives.cost import Pricer, price
from collectives.group import Group
from collectives.interpret import interpret
from collectives.topology import load_cluster, topology_of

GI = 1 << 30
TRN1, TRN2 = load_cluster("trn1.32xlarge"), load_cluster()


def cost(name, op, cluster, ranks, nbytes, **more):
    group = Group(cluster, ranks)
    return price(lookup(name, op).build(op, group), group, nbytes, **more)


def busbw(name, cluster, ranks):
    n = len(ranks)
    return GI / cost(name, "all_reduce", cluster, ranks, GI).time_ns * 2 * (n - 1) / n


@pytest.mark.parametrize("name", ["ring", "kangaring"])
def test_4_channels_of_the_full_node_double_the_2_of_a_part(name):
    quick = {"core_Bps": 1e15}  # the chips' links alone
    for product in ("trn1.32xlarge", "trn2.48xlarge"):
        cluster = load_cluster(product, assumptions=quick)
        part, full = range(cluster.cores // 2), range(cluster.cores)
        assert len(Group(cluster, part).chip_cycles) == 2 and len(Group(cluster, full).chip_cycles) == 4
        assert busbw(name, cluster, full) / busbw(name, cluster, part) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("name", ["ring", "kangaring"])
def test_channels_share_no_link(name):
    group = Group(TRN2, range(64))
    result = cost(name, "all_gather", TRN2, range(64), 64 << 20)
    topology = topology_of(TRN2)
    chips = [result.bytes_by_link[i] for i in topology.chip_links.values()]
    each = (64 - 4 if name == "ring" else 64 - 2) * (1 << 20) / len(group.chip_cycles)
    assert max(chips) == pytest.approx(each, rel=0.06)
    assert min(chips) == pytest.approx(each, rel=0.06)


def test_mesh_loads_the_links_about_twice_as_much_as_ring():
    """32 C against 15.75 C for the segment C of each of 16 x 4 ranks."""
    C = 1 << 20
    links = list(topology_of(TRN2).chip_links.values())
    mesh = cost("mesh", "all_gather", TRN2, range(64), 64 * C).bytes_by_link[links]
    ring = cost("ring", "all_gather", TRN2, range(64), 64 * C).bytes_by_link[links]
    assert mesh.max() == mesh.min() == 32 * C
    assert ring.max() == pytest.approx(15.75 * C)


def test_rdh_sends_15_segments_a_rank_over_links():
    C = 1 << 20
    group = Group(TRN2, range(64))
    schedule = lookup("rdh", "all_gather").build("all_gather", group)
    rows = schedule.rows
    over = group.chip[rows.src] != group.chip[rows.dst]
    assert set(np.bincount(rows.src[over], rows.count[over])) == {15}
    hops = [len(topology_of(TRN2).route(int(group.cores[a]), int(group.cores[b]))) for a, b in
            set(zip(rows.src[over].tolist(), rows.dst[over].tolist(), strict=True))]  # fmt: skip
    assert set(hops) == {1}
    assert schedule.steps == 4 + 1
    assert cost("rdh", "all_gather", TRN2, range(64), 64 * C).sent_bytes.max() == (15 + 3 * 16) * C


@pytest.mark.parametrize("instances", [2, 4])
@pytest.mark.parametrize("between", ["mesh", "rdh", "ring"])
def test_hierarchical_bytes_over_efa(instances, between):
    """Each instance sends 2 (X - 1) / X of the tensor out in total."""
    cluster = load_cluster(instances=instances)
    nbytes = 64 << 20
    result = cost(f"hier:kangaring+{between}", "all_reduce", cluster, range(cluster.cores), nbytes)
    topology = topology_of(cluster)
    for i in range(instances):
        out = np.unique(topology.efa_out) + i * topology.links_per_instance
        assert result.bytes_by_link[out].sum() == 2 * (instances - 1) * nbytes // instances


@pytest.mark.parametrize("nodes", [4, 8])
def test_single_step_mesh_wins_while_its_extra_bytes_take_less_than_a_hop(nodes):
    """The crossing is where (N - 1)(N - 2) C / BW is one hop of 15 us."""
    cluster = load_cluster(instances=nodes, assumptions={"efa_incast_per_peer": 0})
    ranks = range(0, cluster.cores, cluster.cores_per_instance)
    Bps = topology_of(cluster).link_Bps[topology_of(cluster).efa_out[0]]
    C = 15e-6 * Bps / ((nodes - 1) * (nodes - 2))
    for factor, single_wins in ((0.9, True), (1.1, False)):
        nbytes = int(C * factor) * nodes
        single = cost("mesh_single_step", "all_reduce", cluster, ranks, nbytes).time_ns
        assert (single < cost("mesh", "all_reduce", cluster, ranks, nbytes).time_ns) is single_wins


def test_latency_of_a_ring_over_instances_is_paid_once_a_lap():
    cluster = load_cluster(instances=2)
    result = cost("ring", "all_gather", cluster, range(128), 128)
    p = cluster.parameters
    assert result.time_ns < p["base_ns"] + 127 * (p["hop_ns"] + 4 * p["extra_hop_ns"]) + 3 * p["efa_hop_ns"]


def test_stages_add_up():
    cluster = load_cluster(instances=2)
    both = cost("hier:ring+ring", "all_gather", cluster, range(128), 128 << 20).time_ns
    inside = cost("ring", "all_gather", cluster, range(64), 128 << 20).time_ns
    assert both > inside


def test_all_to_all_v_is_priced_and_run_with_its_own_counts():
    group = Group(load_cluster(instances=2), [0, 1, 64, 65])
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (4, 4))
    inputs = [rng.integers(0, 99, counts[r].sum()).astype(np.int32) for r in range(4)]
    for name in ("mesh", "hier:mesh+mesh"):
        schedule = lookup(name, "all_to_all").build("all_to_all", group)
        run = interpret(schedule, inputs, "int32", group, counts)
        for d in range(4):
            parts = [inputs[s][counts[s, :d].sum() : counts[s, : d + 1].sum()] for s in range(4)]
            assert run.outputs[d].tolist() == np.concatenate(parts).tolist()
        result = Pricer(schedule, group).price(0, sizes=counts.ravel() * 4)
        assert {i: int(b) for i, b in enumerate(result.bytes_by_link) if b} == {
            k: v for k, v in run.bytes_by_link.items() if v
        }
