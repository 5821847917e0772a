"""Each rule: what violates it and what does not, what it says, where it applies."""

from dataclasses import replace

import pytest

from collectives.topology import load_cluster, product_names
from neuron_dist.fidelity import rules
from neuron_dist.fidelity.profile import Profile
from neuron_dist.fidelity.vocabulary import FAMILIES, MAY_REFUSE, RELEASES
from tests.fidelity.cases import CASES, TRN2, call, reduction


def profile(cluster=TRN2, release="2.13.3", mode="warn"):
    product, instances, lnc = cluster
    return Profile(mode, release, load_cluster(product, instances, lnc))


def violated(case_call, cluster=TRN2):
    return [rule.id for rule in profile(cluster).violations(case_call)]


def test_every_rule_has_a_case():
    assert sorted(CASES) == sorted({rule.id for release in RELEASES for rule in rules(release)})


@pytest.mark.parametrize("id", CASES)
def test_case(id):
    case = CASES[id]
    assert id in violated(case.violates, case.cluster)
    assert case.beside
    for beside in case.beside:
        assert id not in violated(beside, case.cluster)


@pytest.mark.parametrize("id", CASES)
def test_every_condition_makes_a_difference(id):
    """Without it, one of the calls beside would violate the rule."""
    case = CASES[id]
    (rule,) = [rule for rule in rules("2.13.3") if rule.id == id]
    cluster = load_cluster(*case.cluster)
    for condition in rule.conditions:
        others = tuple(other for other in rule.conditions if other != condition)
        wider = Profile("warn", "2.13.3", cluster, [replace(rule, conditions=others)])
        assert any(wider.violations(beside) for beside in case.beside), str(condition)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("id", CASES)
def test_message(id, release):
    case = CASES[id]
    here = profile(case.cluster, release)
    (rule,) = [rule for rule in here.violations(case.violates) if rule.id == id]
    message = here.message(rule, case.violates)
    assert message.startswith(
        f"fidelity: TorchNeuron {release} on {case.cluster[0]} {rule.effect} "
    )
    assert message.endswith(f". [rule {id}; docs/fidelity.md#{id}]")
    assert "\n" not in message and "{" not in message and "}" not in message
    assert f"; {rule.instead.split('{')[0]}" in message


def test_the_message_names_what_was_called():
    here = profile()
    product = reduction("all_reduce", "PRODUCT")
    (rule,) = here.violations(product)
    assert here.message(rule, product) == (
        'fidelity: TorchNeuron 2.13.3 on trn2.48xlarge refuses all_reduce with ReduceOp.PRODUCT ("unsupported reduce '
        'operation"); use SUM, AVG, MIN or MAX, or gather and reduce on every rank. '
        "[rule reduce-op; docs/fidelity.md#reduce-op]"
    )
    wide = call("all_reduce", range(1, 64, 2))
    (rule,) = here.violations(wide)
    assert "group [1, 3, 5, ..., 63] of every second core" in here.message(rule, wide)


def test_several_rules_at_once_in_the_order_of_the_page():
    found = violated(call("all_to_all", 3, 4, even=False, cpu=True, dtype="float8_e5m2"))
    order = [rule.id for rule in rules("2.13.3")]
    assert found == sorted(found, key=order.index)
    assert {
        "uneven-all-to-all",
        "all-to-all-group-size",
        "group-size",
        "cpu-tensor",
        "dtype",
    } <= set(found)


LEGAL = {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize("size", [*LEGAL, 3, 5, 6, 12, 24, 31, 33, 48, 63])
def test_sizes_of_groups(size):
    assert ("group-size" not in violated(call("all_gather", size))) == (size in LEGAL)
    smaller = {"all-to-all-group-size"} & set(violated(call("all_to_all", size)))
    assert (not smaller) == (size in LEGAL - {1, 2})


def test_sizes_on_several_instances_are_counted_as_a_whole():
    assert violated(call("all_gather", 96), ("trn2.48xlarge", 2, 2)) == ["asymmetric-group"]
    assert violated(call("all_gather", (0, 64, 128)), ("trn2.48xlarge", 3, 2)) == [
        "group-size-over-instances"
    ]
    assert violated(call("all_gather", 192), ("trn2.48xlarge", 3, 2)) == []


def test_shapes_are_judged_on_each_instance():
    both = (0, 32, 64, 96)
    assert violated(call("all_reduce", both), ("trn2.48xlarge", 2, 2)) == ["trn2-32x2"]


def test_shapes_depend_on_the_product_and_its_cores():
    assert violated(call("all_reduce", (0, 32)), ("trn2-ultraserver", 1, 2)) == []
    assert violated(call("all_reduce", (0, 32)), ("trn2.48xlarge", 1, 1)) == []
    assert violated(call("all_reduce", range(1, 16, 2)), ("trn3-gen1", 1, 2)) == []
    assert violated(call("all_reduce", (0, 2)), ("trn2.3xlarge", 1, 2)) == []  # one chip
    assert violated(call("all_gather", 2), ("trn1.2xlarge", 1, 1)) == []


def test_premul_sum_is_emulated_and_the_other_reductions_are_there():
    for op in ("all_reduce", "reduce_scatter"):
        for name in ("SUM", "AVG", "MIN", "MAX", "PREMUL_SUM"):
            assert violated(reduction(op, name)) == []


def test_a_rule_that_may_refuse_does_not_raise():
    uncertain = {rule.id for rule in rules("2.14.3") if not rule.raises_in_strict}
    assert {"send-recv", "trn2-8x8", "strided-group"} <= uncertain
    assert {"float64", "linear-algebra-on-the-cpu"} <= uncertain
    assert all(rule.why for rule in rules("2.14.3") if rule.effect == MAY_REFUSE)


def test_families_are_those_of_the_products():
    assert {load_cluster(product).family for product in product_names()} == set(FAMILIES)


def test_wrong_op():
    with pytest.raises(
        ValueError, match=r"op is 'all_gahter', expected all_reduce, .*; did you mean 'all_gather'"
    ):
        violated(call("all_gahter"))
    with pytest.raises(ValueError, match="there is no core for rank 64, only for 0 to 63"):
        violated(call("all_gather", 65))


@pytest.mark.parametrize(
    ("mode", "release", "text"),
    [
        (
            "strikt",
            "2.13.3",
            "mode is 'strikt', expected off, warn or strict; did you mean 'strict'",
        ),
        ("warn", "2.13", "release is '2.13', expected 2.13.3 or 2.14.3; did you mean '2.13.3'"),
    ],
)
def test_wrong_profile(mode, release, text):
    with pytest.raises(ValueError, match=text):
        Profile(mode, release, load_cluster())


def test_wrong_release():
    with pytest.raises(ValueError, match=r"release is '2.12.3', expected 2.13.3 or 2.14.3"):
        rules("2.12.3")
