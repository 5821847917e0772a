"""The choice equals AWS's stated ranges, and an override is honoured or explained."""

import pytest

from collectives.group import Group
from collectives.schedule import ScheduleError
from collectives.select import ENVIRONMENT, choose
from collectives.topology import load_cluster

KI, MI = 1 << 10, 1 << 20
TRN2 = load_cluster()


def name(op, nbytes, ranks, cluster=TRN2, **more):
    return choose(op, nbytes, Group(cluster, ranks), **more).name


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    "nbytes, expected",
    [(1, "mesh"), (999_999, "mesh"), (1_000_000, "rdh"), (8 * MI, "rdh"), (55_999_999, "rdh"),
     (56_000_000, "kangaring"), (512 * MI, "kangaring")],
)  # fmt: skip
def test_a_full_node_has_the_stated_ranges(op, nbytes, expected):
    """Mesh below 1 MB, RDH from 1 to 56 MB, KangaRing above: 16 chips x 4 ranks."""
    assert name(op, nbytes, range(64)) == expected


@pytest.mark.parametrize(
    "nbytes, expected",
    [(4, "mesh"), (32, "mesh"), (512, "mesh"), (8 * KI, "mesh"), (128 * KI, "mesh"), (2 * MI, "rdh"),
     (32 * MI, "kangaring"), (512 * MI, "kangaring")],
)  # fmt: skip
def test_16_ranks_choose_what_nccom_test_shows(nbytes, expected):
    assert name("all_reduce", nbytes, range(16)) == expected


@pytest.mark.parametrize("ranks", [4, 16, 32, 64])
def test_small_middle_large(ranks):
    assert name("all_reduce", 512 * KI, range(ranks)) == "mesh"
    assert name("all_reduce", MI, range(ranks)) == "rdh"
    assert name("all_reduce", 57 * 1000 * 1000, range(ranks)) == "kangaring"


@pytest.mark.parametrize("nbytes", [KI, 4 * MI, 512 * MI])
def test_ring_is_the_fallback(nbytes):
    assert name("all_reduce", nbytes, range(0, 64, 4)) == "ring"  # one rank a chip
    assert name("all_reduce", nbytes, [0, 1, 2, 4, 8, 9]) == "ring"  # uneven chips


def test_kangaring_only_with_whole_chips():
    half = [r for r in range(64) if r % 4 < 2]
    assert name("all_reduce", 512 * MI, half) == "ring"
    assert name("all_reduce", 4 * MI, half) == "rdh"
    assert "does not hold all ranks" in dict(choose("all_reduce", 512 * MI, Group(TRN2, half)).rejected)["kangaring"]


def test_over_instances():
    two = load_cluster(instances=2)
    sixteen = load_cluster(instances=16)
    assert name("all_reduce", KI, range(128), two) == "hier:mesh+mesh"
    assert name("all_reduce", 512 * MI, range(1024), sixteen) == "hier:kangaring+rdh"  # AWS's example for large
    assert name("all_reduce", KI, range(0, 128, 64), two) in ("mesh", "mesh_single_step")
    assert name("all_reduce", KI, range(60, 70), two) == "mesh"
    assert name("all_reduce", 4 * MI, range(60, 70), two) == "ring"
    assert name("all_to_all", KI, range(128), two) == "hier:mesh+mesh"


def test_the_ultraserver_is_one_instance():
    cluster = load_cluster("trn2-ultraserver")
    assert name("all_reduce", 4 * MI, range(256), cluster) == "rdh"


def test_trn3_uses_mesh_and_ring():
    cluster = load_cluster("trn3-gen2")
    assert name("all_gather", KI, range(64), cluster) == "mesh"
    assert name("all_gather", 512 * MI, range(64), cluster) == "ring"


def test_every_other_algorithm_is_rejected_with_a_reason():
    choice = choose("all_reduce", 4 * MI, Group(TRN2, range(64)))
    others = dict(choice.rejected)
    assert {"ring", "kangaring", "mesh", "hier:mesh+mesh"} <= set(others) and "rdh" not in others
    assert all(others.values())
    assert others["hier:mesh+mesh"] == "the group is on one instance"


def test_override(monkeypatch):
    assert name("all_reduce", KI, range(8), algorithm="ring") == "ring"
    monkeypatch.setenv(ENVIRONMENT, "ring")
    assert name("all_reduce", KI, range(8)) == "ring"
    assert name("all_to_all", KI, range(8)) == "mesh"  # ring has none
    monkeypatch.setenv(ENVIRONMENT, "all_reduce=rdh, all_gather=ring")
    assert name("all_reduce", KI, range(8)) == "rdh"
    assert name("all_gather", KI, range(8)) == "ring"
    assert name("reduce_scatter", KI, range(8)) == "mesh"
    monkeypatch.setenv(ENVIRONMENT, "rdh")
    choice = choose("all_reduce", KI, Group(TRN2, range(12)))
    assert choice.name == "mesh" and choice.rejected[0] == ("rdh", "3 chips are not a power of two")


@pytest.mark.parametrize(
    "value, message",
    [("rign", "unknown algorithm 'rign'; did you mean 'ring'"), ("allreduce=ring", "unknown op 'allreduce'")],
)
def test_a_wrong_override(monkeypatch, value, message):
    monkeypatch.setenv(ENVIRONMENT, value)
    with pytest.raises(ScheduleError, match=message):
        choose("all_reduce", KI, Group(TRN2, range(8)))


def test_an_argument_that_does_not_suit_is_refused():
    with pytest.raises(ScheduleError, match="3 chips are not a power of two"):
        choose("all_reduce", KI, Group(TRN2, range(12)), algorithm="rdh")
