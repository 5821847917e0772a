"""For each rule a call that violates it, and calls beside it that do not: one at least for each of its conditions."""

from dataclasses import dataclass, replace

from neuron_dist.fidelity.call import Call

TRN2 = ("trn2.48xlarge", 1, 2)
TRN2_LNC1 = ("trn2.48xlarge", 1, 1)
TWO_TRN2 = ("trn2.48xlarge", 2, 2)
TRN1 = ("trn1.32xlarge", 1, 1)


TRN2 = ("trn2.48xlarge", 1, 2)
TRN2_LNC1 = ("trn2.48xlarge", 1, 1)
TWO_TRN2 = ("trn2.48xlarge", 2, 2)
TRN1 = ("trn1.32xlarge", 1, 1)
TWO_TRN1 = ("trn1.32xlarge", 2, 1)


@dataclass(frozen=True)
class Case:
    """``cluster`` is (product, instances, LNC)."""

    violates: Call
    beside: tuple[Call, ...]
    cluster: tuple[str, int, int] = TRN2


def case(violates, *beside, cluster=TRN2, **changes):
    """Beside it also stands, for each of ``changes``, the same call with that one."""
    changed = [replace(violates, **{name: value}) for name, value in changes.items()]
    return Case(violates, (*beside, *changed), cluster)


def strided(stride, count, first=0):
    return tuple(range(first, first + stride * count, stride))


def call(op, ranks=4, world=None, **fields):
    """A call on the first ``ranks`` ranks, or on those given."""
    group = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    return Call(op, group, world or max(group) + 1, **fields)


def reduction(op, name, **fields):
    return call(op, reduction=name, dtype="float32", **fields)


def operator(name, **fields):
    return call("operator", 1, operator=name, **fields)


ROWS_0_AND_3 = (*range(16), *range(48, 64))

CASES = {
    "uneven-all-to-all": case(call("all_to_all", even=False), even=True, op="all_gather"),
    "all-to-all-split-sizes": case(
        call("all_to_all", explicit_splits=True), explicit_splits=False, even=False
    ),
    "all-to-all-group-size": case(call("all_to_all", 2), call("all_to_all", 4)),
    "all-to-all-first-rank": case(
        call("all_to_all", range(2, 6), 8), call("all_to_all", range(4, 8), 8)
    ),
    "all-to-all-world-size": case(call("all_to_all", 4, 6), call("all_to_all", 4, 8)),
    "subgroup-barrier": case(call("barrier", 4, 8), call("barrier", 8, 8)),
    "split-group": case(call("split_group"), op="new_group"),
    "monitored-barrier": case(call("monitored_barrier"), op="barrier"),
    "coalescing-manager": case(
        reduction("all_reduce", "SUM", managed=True), managed=False, op="send"
    ),
    "sequence-number": case(call("get_sequence_number"), op="barrier"),
    "completion-hook": case(call("register_on_completion_hook"), op="barrier"),
    "time-estimator": case(call("time_estimator"), op="barrier"),
    "group-size": case(
        call("all_gather", 3),
        call("all_gather", 2),
        call("all_gather", (0, 64, 128)),
        cluster=("trn2.48xlarge", 3, 2),
    ),
    "group-size-over-instances": case(
        call("all_gather", (0, 1, 2, 64, 65, 66)),
        call("all_gather", (0, 1, 64, 65)),
        call("all_gather", range(6)),
        cluster=TWO_TRN2,
    ),
    "asymmetric-group": case(
        call("all_gather", (0, 1, 64, 66)), call("all_gather", (0, 1, 64, 65)), cluster=TWO_TRN2
    ),
    "strided-group": case(
        call("all_reduce", range(1, 16, 2)),
        call("all_reduce", strided(4, 8, 1)),
        call("all_reduce", (1, 3)),
    ),
    "send-recv": case(call("send", 2), op="broadcast"),
    "reduce-op": case(reduction("reduce_scatter", "BXOR"), reduction="MAX"),
    "premul-sum-reduce": case(reduction("reduce", "PREMUL_SUM"), op="all_reduce", reduction="SUM"),
    "cpu-tensor": case(call("recv", cpu=True), cpu=False),
    "dtype": case(call("all_gather", dtype="float64"), dtype="int64"),
    "empty-all-gather": case(call("all_gather", empty=True, empty_dim0=True), empty_dim0=False),
    "empty-reduce-scatter": case(call("reduce_scatter", empty=True), op="broadcast", empty=False),
    "reduce-scatter-coalesced-shapes": case(
        call("reduce_scatter", coalesced=True, reshaped=True), coalesced=False, reshaped=False
    ),
    "reduce-scatter-coalesced-lists": case(
        call("reduce_scatter", coalesced=True, tensor_list=True), coalesced=False, tensor_list=False
    ),
    "trn1": case(call("new_group", 32), op="barrier", cluster=TRN1),
    "trn1-4-ranks": case(
        call("all_reduce", strided(4, 4)),
        call("all_reduce", strided(8, 4, 1)),
        call("all_reduce", strided(4, 8)),
        call("all_reduce", (0, 1, 32, 33)),
        cluster=TWO_TRN1,
    ),
    "trn1-16-ranks": case(
        call("all_reduce", range(8, 24)),
        call("all_reduce", range(16, 32)),
        call("all_reduce", range(8, 16)),
        call("all_reduce", (*range(8), *range(32, 40))),
        cluster=TWO_TRN1,
    ),
    "trn1-16-ranks-other-ops": case(
        call("all_gather", 16),
        call("all_gather", 8),
        call("all_gather", (*range(16), *range(32, 48))),
        op="all_reduce",
        cluster=TWO_TRN1,
    ),
    "trn2-32x2": case(call("all_reduce", (0, 32)), call("all_reduce", ROWS_0_AND_3)),
    "trn2-64x2": case(
        call("all_reduce", (0, 64)), call("all_reduce", strided(32, 4)), cluster=TRN2_LNC1
    ),
    "trn2-8x8": case(call("all_reduce", strided(8, 8)), call("all_reduce", strided(4, 16))),
    "trn2-16x8": case(
        call("all_reduce", strided(16, 8)), call("all_reduce", strided(8, 16)), cluster=TRN2_LNC1
    ),
    "float64": case(
        operator("mm", float64=True),
        operator("scaled_dot_product_attention", float64=True),
        float64=False,
    ),
    "int64-overflow": case(operator("cumsum", overflows=True), overflows=False),
    "float64-attention": case(
        operator("scaled_dot_product_attention", float64=True), operator="mm", float64=False
    ),
    "channels-last": case(operator("empty", channels_last=True), channels_last=False),
    "linear-algebra-on-the-cpu": case(operator("svd"), operator="mm"),
    "compile-dynamic-shapes": case(call("compile", 1, dynamic=True), dynamic=False),
    "data-dependent-shapes": case(operator("nonzero"), operator="where"),
}
