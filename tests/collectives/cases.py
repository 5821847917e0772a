"""Groups of every shape, and the (op, algorithm) pairs that suit them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from collectives.algorithms import algorithms_for
from collectives.group import Group
from collectives.schedule import OPS
from collectives.topology import load_cluster

CLUSTERS = {
    name: load_cluster(product, instances=instances, lnc=lnc)
    for name, product, instances, lnc in (
        ("trn2", "trn2.48xlarge", 1, 2),
        ("trn2 LNC 1", "trn2.48xlarge", 1, 1),
        ("3 x trn2", "trn2.48xlarge", 3, 2),
        ("4 x trn1", "trn1.32xlarge", 4, 1),
        ("ultraserver", "trn2-ultraserver", 1, 2),
        ("trn3", "trn3-gen2", 2, 2),
    )
}


@st.composite
def groups(draw, most=64):
    """A group of 2 to ``most`` ranks: contiguous, strided, evenly on several instances, or at random."""
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    kind = draw(st.sampled_from(["contiguous", "strided", "instances", "random"]))
    size = draw(st.one_of(st.sampled_from([2, 4, 8, 16, 32, 64]), st.integers(2, 64)))
    size = min(size, most, cluster.cores)
    if kind == "contiguous":
        start = draw(st.integers(0, cluster.cores - size))
        ranks = list(range(start, start + size))
    elif kind == "strided":
        stride = draw(st.integers(1, max(1, (cluster.cores - 1) // max(size - 1, 1))))
        ranks = [stride * i for i in range(size)]
    elif kind == "instances":
        each = max(1, min(size // cluster.instances, cluster.cores_per_instance))
        ranks = [i * cluster.cores_per_instance + r for i in range(cluster.instances) for r in range(each)]
        ranks = ranks if len(ranks) > 1 else [0, 1]
    else:
        ranks = draw(st.lists(st.integers(0, cluster.cores - 1), min_size=size, max_size=size, unique=True))
    return Group(cluster, ranks)


def suitable(group):
    """(op, algorithm) for everything that can run on ``group``."""
    for op in OPS:
        if op == "send" and group.size != 2:
            continue
        for algorithm in algorithms_for(op):
            if not algorithm.refuses(op, group):
                yield op, algorithm


def inputs_of(op, n, numel, dtype, seed):
    """Random inputs: bits of any bf16 or int32, fp32 of very different sizes."""
    rng = np.random.default_rng(seed)
    size = numel * (n if op in ("reduce_scatter", "scatter", "all_to_all") else 1)
    if dtype == "int32":
        return [rng.integers(-(2**31), 2**31, size, np.int64).astype(np.int32) for _ in range(n)]
    values = [(rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(np.float32) for _ in range(n)]
    if dtype == "fp32":
        return values
    return [(v.view(np.uint32) >> 16).astype(np.uint16) for v in values]
