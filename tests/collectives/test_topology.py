"""Products load, say where their numbers come from, and size clusters; mistakes are named."""

from fractions import Fraction

import numpy as np
import pytest
import yaml

from collectives.topology import ClusterError, load_cluster, product_names, topology_of

GIB = 1 << 30


@pytest.mark.parametrize("product", product_names())
def test_every_product_loads_at_every_lnc(product):
    default = load_cluster(product)
    assert default.product == product and default.instances == 1
    assert default.cores == default.cores_per_instance > 0
    for lnc in (1, 2):
        try:
            cluster = load_cluster(product, lnc=lnc)
        except ClusterError as error:
            assert "lnc" in str(error)
            continue
        assert cluster.cores * cluster.lnc == default.cores * default.lnc
        assert (
            cluster.hbm_bytes_per_core * cluster.logical_cores_per_chip
            <= cluster.hbm_bytes_per_chip
        )


@pytest.mark.parametrize("product", product_names())
def test_every_number_has_a_source(product):
    from importlib import resources

    spec = yaml.safe_load(
        (resources.files("collectives.topology") / "products" / f"{product}.yaml").read_text()
    )
    assert {"chips", "hbm", "lnc", "max_instances"} <= set(spec["sources"])


@pytest.mark.parametrize(
    "product, lnc, cores, hbm",
    [
        ("trn1.2xlarge", 1, 2, 16 * GIB),
        ("trn1.32xlarge", 1, 32, 16 * GIB),
        ("trn2.48xlarge", 2, 64, 24 * GIB),
        ("trn2.48xlarge", 1, 128, 12 * GIB),
        ("trn2-ultraserver", 2, 256, 24 * GIB),
    ],
)
def test_known_sizes(product, lnc, cores, hbm):
    cluster = load_cluster(product, lnc=lnc)
    assert (cluster.cores, cluster.hbm_bytes_per_core) == (cores, hbm)


def test_several_instances():
    cluster = load_cluster("trn2.48xlarge", instances=4)
    assert cluster.cores == 256
    assert str(cluster) == "4 x trn2.48xlarge (LNC 2)"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"product": "trn2.48xl"}, "did you mean 'trn2.48xlarge'"),
        ({"product": "dgx"}, "unknown product 'dgx'"),
        ({"instances": 0}, "instances is 0"),
        ({"instances": True}, "instances is True"),
        ({"instances": 10**6}, "expected at most"),
        ({"lnc": 3}, "lnc is 3, expected 1 or 2"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ClusterError, match=message):
        load_cluster(**arguments)


NEIGHBOURS = """
0:12,3,4,1    1:13,0,5,2    2:14,1,6,3    3:15,2,7,0    4:0,7,8,5     5:1,4,9,6    6:2,5,10,7   7:3,6,11,4
8:4,11,12,9   9:5,8,13,10  10:6,9,14,11  11:7,10,15,8  12:8,15,0,13  13:9,12,1,14 14:10,13,2,15 15:11,14,3,12
"""
"""The published table of trn1.32xlarge and trn2.48xlarge: device, then up, left, down, right."""


@pytest.mark.parametrize("product", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge"])
def test_neighbour_table(product):
    topology = topology_of(load_cluster(product))
    for entry in NEIGHBOURS.split():
        device, neighbours = entry.split(":")
        assert topology.neighbours(int(device)) == [int(n) for n in neighbours.split(",")]
    assert len(topology.chip_links) == 2 * 32
    hops = topology.hops()
    assert hops.max() == 4
    assert Fraction(int(hops.sum()), 16 * 15) == Fraction(32, 15)


def test_ultraserver_distances():
    topology = topology_of(load_cluster("trn2-ultraserver"))
    assert Fraction(int(topology.hops().sum()), 64 * 63) == Fraction(192, 63)
    assert {len(topology.neighbours(chip)) for chip in range(64)} == {6}
    inside, across = topology.chip_links[0, 1], topology.chip_links[0, 16]
    assert topology.link_Bps[inside] == 2 * topology.link_Bps[across]


@pytest.mark.parametrize("product", [p for p in product_names() if load_cluster(p).spec["network"]["cycles"]])
def test_cycles_are_hamiltonian_and_edge_disjoint(product):
    topology = topology_of(load_cluster(product))
    used = set()
    for cycle in topology.cluster.spec["network"]["cycles"]:
        edges = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        assert sorted(cycle) == list(range(topology.chips))
        for a, b in edges:
            assert (a, b) in topology.chip_links and (b, a) in topology.chip_links
            assert frozenset((a, b)) not in used
            used.add(frozenset((a, b)))


@pytest.mark.parametrize("product", [p for p in product_names() if load_cluster(p).spec["network"]["labels"]])
def test_hypercube_labels_differ_in_one_bit_between_neighbours(product):
    topology = topology_of(load_cluster(product))
    labels = topology.cluster.spec["network"]["labels"]
    for label, chip in enumerate(labels):
        bit = 1
        while bit < len(labels):
            assert (chip, labels[label ^ bit]) in topology.chip_links
            bit *= 2


def test_routes_go_along_the_row_and_then_the_column_and_load_all_links_alike():
    topology = topology_of(load_cluster())
    names = [topology.link_names[i] for i in topology.route(0, 4 * 5)]
    assert names == ["chip 0 -> chip 1", "chip 1 -> chip 5"]
    assert topology.route(0, 3) == topology.route(0, 1)[:1] + topology.route(2, 3)[1:]
    assert topology.route(7, 7) == []
    loads = np.bincount(topology.routes[topology.routes >= 0])
    assert set(loads[loads > 0]) == {8}


def test_each_core_of_a_trn2_chip_owns_one_link():
    topology = topology_of(load_cluster())
    for chip in range(16):
        assert {topology.port_core(chip, n) for n in topology.neighbours(chip)} == {0, 1, 2, 3}
    assert [topology.port_core(0, n) for n in (3, 4, 1, 12)] == [0, 1, 2, 3]  # left, down, right, up
    assert topology.port_core(0, 5) is None
    assert topology_of(load_cluster(lnc=1)).port_core(0, 1) is None
    assert topology_of(load_cluster("trn2-ultraserver")).port_core(17, 18) == 3


def test_instances_are_joined_by_the_chips_own_efa():
    two = topology_of(load_cluster("trn2.48xlarge", instances=2))
    names = [two.link_names[i] for i in two.route(5, 64 + 63)]
    assert names == ["instance 0 EFA of chip 1 out", "instance 1 EFA of chip 15 in"]
    shared = topology_of(load_cluster("trn1.32xlarge", instances=2))
    assert shared.route(0, 32) == shared.route(2, 32)  # chips 0 and 1 share one
    assert shared.route(0, 32) != shared.route(4, 32)


def test_switched_routes():
    gen2 = topology_of(load_cluster("trn3-gen2"))
    name = lambda a, b: [gen2.link_names[i] for i in gen2.route(4 * a, 4 * b)]  # noqa: E731
    assert name(0, 3) == ["chip 0 -> server switch", "server switch -> chip 3"]
    assert name(0, 5) == ["chip 0 -> rack switch", "rack switch -> chip 5"]
    assert name(0, 72) == ["chip 0 -> chip 72"]
    assert name(0, 76) == ["chip 0 -> chip 72", "chip 72 -> rack switch", "rack switch -> chip 76"]


def test_every_assumption_and_fitted_value_is_explained():
    fitted = set()
    for product in product_names():
        spec = load_cluster(product).spec
        for name, entry in spec["assumptions"].items():
            assert entry["source"] and "alternatives" in entry, (product, name)
        fitted |= {(entry["fitted_to"], name) for name, entry in spec["fitted"].items()}
    assert len(fitted) <= 6  # and two of the test set-ups in benchmarks/fidelity.py


def test_a_mapping_and_an_assumption():
    cluster = load_cluster(mapping=[3, 1, 2, 0], assumptions={"neuronlink_counts_both_directions": False})
    assert [cluster.core_of(r) for r in range(4)] == [3, 1, 2, 0]
    with pytest.raises(ClusterError, match="no core for rank 4"):
        cluster.core_of(4)
    usual = topology_of(load_cluster())
    link = usual.chip_links[0, 1]
    assert topology_of(cluster).link_Bps[link] == 2 * usual.link_Bps[link]
    with pytest.raises(ClusterError, match="core 3 to two ranks"):
        load_cluster(mapping=[3, 3])
    with pytest.raises(ClusterError, match="core 64"):
        load_cluster(mapping=[64])
    with pytest.raises(ClusterError, match="'hops_ns'; did you mean 'hop_ns'"):
        load_cluster(assumptions={"hops_ns": 1})


def test_a_users_own_yaml(tmp_path):
    file = tmp_path / "half.yaml"
    file.write_text(
        "extends: trn2.48xlarge\nproduct: half\nchips: 8\nnetwork:\n  shape: [2, 4]\n  labels: []\n  cycles: []\n"
        "assumptions:\n  base_ns: {value: 1000, source: wishful}\n"
    )
    cluster = load_cluster(str(file))
    assert cluster.cores == 32 and cluster.parameters["base_ns"] == 1000
    assert topology_of(cluster).neighbours(0) == [4, 3, 1]


@pytest.mark.parametrize(
    "text, message",
    [
        ("network:\n  efa_bps: 1.0\n", r"unknown key 'network.efa_bps'; did you mean 'efa_Bps'"),
        ("chip: 4\n", "unknown key 'chip'; did you mean 'chips'"),
        ("chips: 4\n", r"network.shape \[4, 4\] has 16 chips, but chips is 4"),
        ("network:\n  layout: tours\n", "did you mean 'torus'"),
        ("network:\n  shape: [4, 4.0]\n", "network.shape is 4.0, expected int"),
        ("network:\n  cycles: [[0, 1]]\n", r"network.cycles\[0\] is not an order of the chips"),
        ("fitted:\n  base_ns: {value: 1}\n", "fitted.base_ns lacks 'fitted_to'"),
        ("fitted:\n  base_ms: {value: 1}\n", "unknown key 'fitted.base_ms'; did you mean 'base_ns'"),
        ("assumptions:\n  hop_ns: {value: fast, source: x}\n", "assumptions.hop_ns.value is 'fast'"),
        ("default_lnc: true\n", "default_lnc is True, expected int"),
        ("[]\n", "holds list"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_wrong_yaml_is_refused_by_key(tmp_path, text, message):
    file = tmp_path / "own.yaml"
    file.write_text(text if text[0] in "[a" and text[:2] != "as" else "extends: trn2.48xlarge\n" + text)
    with pytest.raises(ClusterError, match=message):
        load_cluster(str(file))


def test_a_yaml_that_is_not_there():
    with pytest.raises(ClusterError, match="No such file"):
        load_cluster("/nowhere/own.yaml")
