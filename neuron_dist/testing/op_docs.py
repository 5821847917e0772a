"""The page docs/coverage.md, from the results of benchmarks/op_coverage.py."""

from __future__ import annotations

from typing import Any

from neuron_dist.testing.op_workers import Record, cause_of

__all__ = ["REASONS", "render"]

REASONS: dict[str, str] = {}
"""By operator (its formatted name): why the device does not do as the CPU."""


def render(result: dict[str, Any], records: list[Record]) -> str:
    """Markdown: what was run, counts by variant, and each case that fails with its reason."""
    raise NotImplementedError
