"""Products load, say where their numbers come from, and size clusters; mistakes are named."""

import pytest
import yaml

from collectives.topology import ClusterError, load_cluster, product_names

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
