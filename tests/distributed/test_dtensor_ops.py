"""A few operators of torch's database on sharded tensors; benchmarks/op_coverage.py --suite dtensor runs the others."""

import pytest

from neuron_dist.testing import dtensor_checks

OPERATORS = ("add", "mm", "sum", "cat", "nn_functional_layer_norm", "nn_functional_embedding")


@pytest.mark.parametrize("op", OPERATORS)
def test_operator_on_shards(op: str) -> None:
    variants = frozenset(dtensor_checks.MEANING)
    outcomes = dtensor_checks.check(op, "float32", variants, 1, "neuron")
    assert outcomes and not [c for c in outcomes if c.reason is not None]
    assert not all(c.raised for c in outcomes)
