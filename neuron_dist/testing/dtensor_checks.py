"""Operators on sharded tensors: four ranks, every combination of placements, on the device and on the CPU.

The samples are torch's (``op_db``), the placements those of its ``DTensorConverter``: each tensor is replicated, or
sharded on a dimension that the ranks divide. Both runs go through backend ``neuron``, whose order of additions does not
depend on the kind of memory, so that shards have the same bits.
"""

from __future__ import annotations

from neuron_dist.testing.op_checks import Check
from neuron_dist.testing.ranks import run_ranks

__all__ = ["MEANING", "RANKS", "check"]

MEANING = {
    "shards": "the local shards and placements of the result, and of the gradients where the operator has them",
    "whole": "the result put together, against the operator on whole tensors, within torch's tolerances",
}
RANKS = 4


def check(
    name: str, dtype: str, variants: frozenset[str], most: int | None, device: str
) -> list[Check]:
    """All checks of one operator, made in ranks of their own. A rank's check counts when all ranks pass it."""
    from neuron_dist.testing.dtensor_ranks import checks_of

    by_rank = run_ranks(RANKS, checks_of, name, dtype, variants, most, device, timeout=120.0)
    merged = []
    for checks in zip(*by_rank, strict=True):
        failed = next((c for c in checks if c.reason is not None), checks[0])
        merged.append(failed)
    return merged
