"""Counts of benchmarks/op_coverage.py, and the page docs/coverage.md that is made from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch

from neuron_dist.testing.op_checks import MEANING, VARIANTS
from neuron_dist.testing.op_workers import Record, cause_of

__all__ = ["REASONS", "render", "summary"]

REASONS: dict[str, str] = {}
"""By operator (its formatted name): why the device does not do as the CPU."""


def _groups(records: list[Record]) -> list[dict[str, Any]]:
    """Failures by cause, the most frequent first."""
    counts: Counter[str] = Counter()
    cases: defaultdict[str, list[str]] = defaultdict(list)
    for record in records:
        for failure in record.failures:
            cause = cause_of(failure["reason"])
            counts[cause] += 1
            name = f"{record.op} {record.dtype} {failure['variant']}"
            if name not in cases[cause]:
                cases[cause].append(name)
    return [{"cause": c, "failures": n, "in": cases[c]} for c, n in counts.most_common()]


def _counts(records: list[Record], variant: str | None = None) -> dict[str, int]:
    def total(counts: Counter[str]) -> int:
        return counts.total() if variant is None else counts[variant]

    return {
        "passed": sum(total(r.passed) for r in records),
        "failed": sum(total(r.failed) for r in records),
        "raised": sum(total(r.raised) for r in records),
    }


def summary(records: list[Record], seconds: float) -> dict[str, Any]:
    """Counts of all, by variant and by layout, and the failures by cause.

    ``raised``: of the passed checks, those in which the CPU raises and the device did too.
    """
    by_variant = {v: _counts(records, v) for v in VARIANTS}
    layouts = sorted({r.layout for r in records}, key=lambda name: (name != "strided", name))
    every = _counts(records)
    checks = every["passed"] + every["failed"]
    ran = [r for r in records if r.passed or r.failed]
    return {
        "torch": torch.__version__,
        "operators": len({r.op for r in ran}),
        "cases": len(ran),
        "cases_without_failure": sum(not r.failed.total() for r in ran),
        "checks": checks,
        **every,
        "percent": round(100 * every["passed"] / checks, 3) if checks else 0.0,
        "seconds": round(seconds, 1),
        "variants": {v: c for v, c in by_variant.items() if c["passed"] + c["failed"]},
        "layouts": {
            name: {
                "cases": sum(r.layout == name for r in ran),
                **_counts([r for r in ran if r.layout == name]),
            }
            for name in layouts
        },
        "groups": _groups(records),
        "failing": {
            f"{r.op} {r.dtype} {r.layout}": {"passed": r.passed.total(), "failed": r.failed.total()}
            for r in records
            if r.failed.total()
        },
    }


def _percent(counts: dict[str, int]) -> str:
    checks = counts["passed"] + counts["failed"]
    return f"{100 * counts['passed'] / checks:.3f}" if checks else ""


def _table(header: str, rows: list[list[str]]) -> list[str]:
    columns = header.count("|") + 1
    return [f"| {header} |", "|" + " --- |" * columns, *(f"| {' | '.join(row)} |" for row in rows)]


def _rest(result: dict[str, Any]) -> list[str]:
    by_op: defaultdict[str, list[str]] = defaultdict(list)
    failed: Counter[str] = Counter()
    for case, counts in result["failing"].items():
        op, dtype, layout = case.split()
        by_op[op].append(dtype if layout == "strided" else f"{dtype} ({layout})")
        failed[op] += counts["failed"]
    if not by_op:
        return ["Nothing: every check passes."]
    rows = [
        [f"`{op}`", str(failed[op]), ", ".join(dtypes), REASONS.get(op, "not yet understood")]
        for op, dtypes in sorted(by_op.items())
    ]
    return _table("operator | checks | dtypes | reason", rows)


def render(result: dict[str, Any]) -> str:
    """Markdown: what was run, counts by variant and layout, and each operator that fails with its reason."""
    variants = [
        [
            f"`{v}`",
            MEANING[v],
            f"{c['passed'] + c['failed']}",
            f"{c['failed']}",
            f"{c['raised']}",
            _percent(c),
        ]
        for v, c in result["variants"].items()
    ]
    layouts = [
        [
            f"`{name}`",
            str(c["cases"]),
            f"{c['passed'] + c['failed']}",
            str(c["failed"]),
            _percent(c),
        ]
        for name, c in result["layouts"].items()
    ]
    lines = [
        "# Coverage of operators",
        "",
        "Device `neuron` against the CPU, on torch's own operator database (`torch.testing`, the foreach operators",
        "too). This page is written by",
        "",
        "    python benchmarks/op_coverage.py --layouts strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc \\",
        "        --jobs 2 --json coverage.json --docs",
        "",
        "A *check* is one way to use an operator on one sample of the database, in one dtype that the CPU supports. It",
        "passes when the device gives what the CPU gives: the same bits, dtype, shape, strides, conj and neg bits, the",
        "same sharing of memory among results and arguments, and the same type of exception where the CPU raises.",
        "Random operators, and the few whose results depend on uninitialised memory, are compared by all but the bits.",
        "",
        "## Result",
        "",
        f"torch {result['torch']}: {result['operators']} operators, {result['cases']} combinations of operator, dtype and",
        f"layout, {result['checks']} checks. **{result['percent']} %** pass; {result['cases_without_failure']} of",
        f"{result['cases']} combinations have no failure.",
        "",
        *_table("variant | what is done | checks | failed | CPU raises too | % passed", variants),
        "",
        *_table("layout | combinations | checks | failed | % passed", layouts),
        "",
        "## The rest",
        "",
        *_rest(result),
        "",
        "## What the database does not have",
        "",
        "Quantized and nested tensors, transforms, export, serialization and the like have tests of their own in",
        "`tests/device`. Every operator in one dtype, and a tenth of all, chosen by a hash of the names, is part of `make test`",
        "(`tests/device/test_op_coverage.py`).",
        "",
    ]
    return "\n".join(lines)
