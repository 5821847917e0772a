"""Counts of benchmarks/op_coverage.py, and the sections of docs/coverage.md that are made from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch

from neuron_dist.testing.op_workers import Record, cause_of
from neuron_dist.testing.suites import SUITES

__all__ = ["REASONS", "into_page", "render", "summary"]

REASONS: dict[str, dict[str, str]] = {
    "extensions": {
        "NumpyExpMarkDirtyAutogradFunction": "it writes its result into `x.cpu().numpy()`, which is `x` itself on the CPU "
        "only: on every other device a copy",
    },
    "refs": {
        "_refs_arange": "without `device=` the reference takes the CPU, also under `torch.device`",
        "_refs_mul": "last bit of a product with a conjugated 0-dim tensor: the reference keeps it a scalar on the CPU only",
        "_refs_native_group_norm": "the reference has one formula for the CPU and another for all other devices",
        "_refs_native_layer_norm": "the reference casts mean and rstd to the input's dtype on the CPU only",
    },
    "modules": {
        "nn_GroupNorm": "strides of a gradient in channels_last: torch's formula of the derivative makes its input "
        "contiguous on every device but the CPU",
    },
}
"""By suite and entry (its formatted name): why the device does not do as the CPU."""


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


def summary(
    suite: str, records: list[Record], seconds: float, arguments: str = ""
) -> dict[str, Any]:
    """Counts of all, by variant and by layout, and the failures by cause; ``arguments`` is how it was run.

    ``raised``: of the passed checks, those in which the CPU raises and the device did too.
    """
    by_variant = {v: _counts(records, v) for v in SUITES[suite].meaning}
    layouts = sorted({r.layout for r in records}, key=lambda name: (name != "strided", name))
    every = _counts(records)
    checks = every["passed"] + every["failed"]
    ran = [r for r in records if r.passed or r.failed]
    return {
        "suite": suite,
        "arguments": arguments,
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


def _rest(suite: str, result: dict[str, Any]) -> list[str]:
    by_op: defaultdict[str, list[str]] = defaultdict(list)
    failed: Counter[str] = Counter()
    for case, counts in result["failing"].items():
        op, dtype, layout = case.split()
        by_op[op].append(dtype if layout == "strided" else f"{dtype} ({layout})")
        failed[op] += counts["failed"]
    if not by_op:
        return ["Every check passes."]
    reasons = REASONS.get(suite, {})
    rows = [
        [f"`{op}`", str(failed[op]), ", ".join(dtypes), reasons.get(op, "not yet understood")]
        for op, dtypes in sorted(by_op.items())
    ]
    return _table("entry | checks that fail | dtypes | reason", rows)


def render(suite: str, result: dict[str, Any]) -> str:
    """Markdown: what was run, counts by variant and layout, and each entry that fails with its reason."""
    about = SUITES[suite]
    variants = [
        [
            f"`{v}`",
            about.meaning[v],
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
        f"## {about.title}",
        "",
        about.about,
        "",
        f"    python benchmarks/op_coverage.py --suite {suite}{result['arguments']} --docs",
        "",
        f"torch {result['torch']}: {result['operators']} entries, {result['cases']} combinations with a dtype"
        f"{' and a layout' if len(layouts) > 1 else ''}, {result['checks']} checks.",
        f"**{result['percent']} %** pass; {result['cases_without_failure']} of {result['cases']} combinations have no failure.",
        "",
        *_table("variant | what is done | checks | failed | CPU raises too | % passed", variants),
        "",
    ]
    if len(layouts) > 1:
        lines += [*_table("layout | combinations | checks | failed | % passed", layouts), ""]
    return "\n".join([*lines, *_rest(suite, result), ""])


def into_page(page: str, suite: str, section: str) -> str:
    """``page`` with the section of ``suite`` replaced; it stands between ``<!-- suite -->`` and ``<!-- end -->``.

    Raises ValueError if the page has no such place.
    """
    begin, end = f"<!-- {suite} -->\n", "<!-- end -->"
    if begin not in page:
        raise ValueError(
            f"the page has no line {begin.strip()!r}, where the section of suite {suite!r} belongs"
        )
    before, _, rest = page.partition(begin)
    return before + begin + section + rest[rest.index(end) :]
