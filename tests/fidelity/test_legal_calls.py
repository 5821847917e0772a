"""A call that the documented matrix allows, on a group that the documents name, violates nothing."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.topology import load_cluster
from neuron_dist.fidelity.call import Call
from neuron_dist.fidelity.profile import Profile
from neuron_dist.fidelity.vocabulary import RELEASES

DTYPES = ["float32", "bfloat16", "float16", "int32", "int16", "int8", "uint8"]
REDUCTIONS = ["SUM", "AVG", "MIN", "MAX"]
COPIES = ["all_gather", "broadcast", "gather", "scatter"]

STRIDED = {
    ("trn2.48xlarge", 2): [(4, 16), (16, 4), (4, 4)],
    ("trn2.48xlarge", 1): [(32, 4), (8, 16), (4, 32)],
    ("trn1.32xlarge", 1): [(8, 4)],
}
"""(stride, ranks) that documents name, by product and LNC."""
ADJACENT = {"trn1.32xlarge": [2, 4, 8, 32]}


load = cache(load_cluster)


@cache
def profile(product, instances, lnc, release):
    return Profile("strict", release, load(product, instances, lnc))


@st.composite
def groups(draw, product, lnc, instances):
    """Documented shapes, the same on every instance of a number that gives a legal size."""
    per_instance = load(product, lnc=lnc).cores_per_instance
    if draw(st.booleans()):
        stride, count = draw(st.sampled_from(STRIDED[product, lnc]))
    else:
        stride, count = 1, draw(st.sampled_from(ADJACENT.get(product, [1, 2, 4, 8, 16, 32, 64])))
    block = stride * count
    first = draw(st.integers(0, stride - 1))
    local = range(first, first + block, stride)
    shift = block * draw(st.integers(0, per_instance // block - 1))
    return tuple(i * per_instance + shift + core for i in range(instances) for core in local)


@st.composite
def legal_calls(draw):
    product, lnc = draw(st.sampled_from(sorted(STRIDED)))
    # Shapes on Trn1 are documented for one instance.
    instances = 1 if product.startswith("trn1") else draw(st.sampled_from([1, 2, 4]))
    world_size = instances * load(product, lnc=lnc).cores_per_instance
    ranks = draw(groups(product, lnc, instances))
    numel = draw(st.integers(1, 1 << 30))
    dtype = draw(st.sampled_from(DTYPES))
    op = draw(
        st.sampled_from(
            ["all_reduce", "reduce", "reduce_scatter", "all_to_all", "barrier", *COPIES]
        )
    )
    fields = {"dtype": dtype, "numel": numel}
    if op in ("all_reduce", "reduce", "reduce_scatter"):
        premul = ["PREMUL_SUM"] if op != "reduce" else []
        fields["reduction"] = draw(st.sampled_from(REDUCTIONS + premul))
    if op in ("all_reduce", "all_gather", "reduce_scatter"):
        fields["coalesced"] = draw(st.booleans())
    if op == "all_to_all":
        size = draw(
            st.sampled_from([s for s in (4, 8, 16, 32, 64) if s in ADJACENT.get(product, [s])])
        )
        first = size * draw(st.integers(0, world_size // size - 1))
        ranks = tuple(range(first, first + size))
    if op == "barrier":
        ranks, fields = tuple(range(world_size)), {}
    call = Call(op, ranks, world_size, **fields)
    return call, (product, instances, lnc)


@settings(max_examples=300, deadline=None)
@given(legal_calls(), st.sampled_from(RELEASES))
def test_legal_calls_violate_nothing(drawn, release):
    call, cluster = drawn
    assert profile(*cluster, release).violations(call) == ()
