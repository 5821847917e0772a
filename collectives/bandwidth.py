"""Bus bandwidth: what nccom-test multiplies the algorithm bandwidth of an op with."""

from __future__ import annotations

__all__ = ["FACTORS", "busbw_factor"]

FACTORS = {
    "all_reduce": "2(r-1)/r",
    "all_gather": "(r-1)/r",
    "reduce_scatter": "(r-1)/r",
    "all_to_all": "(r-1)/r",
    "permute": "1",
    "send": "1",
}
"""Bus bandwidth / algorithm bandwidth on r ranks, by the planner's op; nccom-test has no other ops."""


def busbw_factor(op: str, ranks: int) -> float | None:
    """What algorithm bandwidth is multiplied with to give the bandwidth of one rank's links.

    ``op`` is one of :data:`collectives.schedule.OPS`; None for those that nccom-test does not have.
    """
    values = {"2(r-1)/r": 2 * (ranks - 1) / ranks, "(r-1)/r": (ranks - 1) / ranks, "1": 1.0}
    return values[FACTORS[op]] if op in FACTORS else None
