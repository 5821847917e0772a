"""``python benchmarks/op_coverage.py``: torch's own operator database on neuron against the CPU.

Every sample of every operator x dtype that the CPU supports, forward, backward, double backward, forward mode, ``out=``,
in place, on non-contiguous and conjugated inputs, and the inputs that should raise. Results must be the CPU's to the
last bit, with the same dtype, shape, strides and aliases; random operators are compared by metadata.

With ``--json FILE`` results are also appended to FILE.jsonl as they come, and ``--resume`` goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != HERE]  # benchmarks/collectives.py hides the package

import torch  # noqa: E402

from neuron_dist.testing.op_checks import LAYOUTS, VARIANTS, all_ops  # noqa: E402
from neuron_dist.testing.op_docs import REASONS, render  # noqa: E402
from neuron_dist.testing.op_workers import Case, Record, cause_of, run_cases  # noqa: E402

SUPPORTS = {layout: f"supports_{layout}" for layout in LAYOUTS} | {"sparse_coo": "supports_sparse"}
DOCS = HERE.parent / "docs" / "coverage.md"


def stable_hash(case: Case) -> int:
    """0 to 99, the same on every machine."""
    text = f"{case.op} {case.dtype} {case.layout}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") % 100


def choose(args: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    pattern = re.compile(args.ops)
    chosen = []
    for op in all_ops():
        if not pattern.search(op.formatted_name):
            continue
        for dtype in sorted(str(d).removeprefix("torch.") for d in op.supported_dtypes("cpu")):
            for layout in args.layouts:
                if layout == "strided" or getattr(op, SUPPORTS[layout], False):
                    chosen.append(Case(op.formatted_name, dtype, layout))
    if args.dtypes:
        known = {case.dtype for case in chosen}
        unknown = set(args.dtypes) - known
        if unknown:
            sys.exit(f"--dtypes: {', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}")
        chosen = [case for case in chosen if case.dtype in args.dtypes]
    return [case for case in chosen if stable_hash(case) < args.hash_percent]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ops", default="", metavar="REGEX", help="operators whose name has a match; default all")
    parser.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE", help="float32, complex64, ...; default all")
    parser.add_argument("--layouts", nargs="+", default=["strided"], choices=["strided", *LAYOUTS])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--hash-percent", type=int, default=100, metavar="P", help="this part of op x dtype, always the same")
    parser.add_argument("--samples", type=int, default=None, metavar="N", help="samples of each; default all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for one check")
    parser.add_argument("--json", type=Path, metavar="FILE", help="summary; the records go to FILE.jsonl")
    parser.add_argument("--resume", action="store_true", help="keep what FILE.jsonl has, and run the rest")
    parser.add_argument("--groups", type=int, default=40, metavar="N", help="failure groups to print")
    parser.add_argument("--docs", action="store_true", help=f"write docs/{DOCS.name} from the results")
    args = parser.parse_args(argv)
    if args.resume and args.json is None:
        parser.error("--resume needs --json FILE, whose FILE.jsonl has the results so far")
    return args


def load(path: Path) -> dict[Case, Record]:
    """Records of an earlier run. A last line that was cut off is left out."""
    found = {}
    for line in path.read_text().splitlines():
        try:
            record = Record.from_json(json.loads(line))
        except json.JSONDecodeError:
            continue
        found[Case(record.op, record.dtype, record.layout)] = record
    return found


def run(args: argparse.Namespace, cases: list[Case]) -> list[Record]:
    """Runs what is not there yet, with a progress bar, and returns all records."""
    from tqdm import tqdm

    lines = args.json.with_suffix(args.json.suffix + "l") if args.json else None
    known = load(lines) if args.resume and lines.exists() else {}
    todo = [case for case in cases if case not in known]
    records = [known[case] for case in cases if case in known]
    if lines is not None:
        lines.parent.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(todo), unit="case", smoothing=0.05, disable=None) as bar:
        sink = open(lines, "a" if args.resume else "w") if lines is not None else None
        try:
            for record in run_cases(
                todo,
                frozenset(args.variants),
                jobs=args.jobs,
                most=args.samples,
                timeout_s=args.timeout,
            ):
                records.append(record)
                if sink is not None:
                    sink.write(json.dumps(record.as_json()) + "\n")
                    sink.flush()
                bar.set_postfix_str(f"{record.op} {record.dtype}"[:40], refresh=False)
                bar.update()
        finally:
            if sink is not None:
                sink.close()
    return sorted(records, key=lambda r: (r.op, r.dtype, r.layout))


def groups(records: list[Record]) -> list[dict[str, Any]]:
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


def summary(records: list[Record], seconds: float) -> dict[str, Any]:
    """Counts of all and by variant, the failures by cause."""
    by_variant = {}
    for variant in VARIANTS:
        passed = sum(r.passed[variant] for r in records)
        failed = sum(r.failed[variant] for r in records)
        raised = sum(r.raised[variant] for r in records)
        if passed or failed:
            by_variant[variant] = {"passed": passed, "failed": failed, "of which both raise": raised}
    passed = sum(v["passed"] for v in by_variant.values())
    failed = sum(v["failed"] for v in by_variant.values())
    return {
        "torch": torch.__version__,
        "operators": len({r.op for r in records}),
        "cases": len(records),
        "cases without failure": sum(not r.failed.total() for r in records),
        "checks": passed + failed,
        "passed": passed,
        "failed": failed,
        "percent": round(100 * passed / (passed + failed), 3) if passed + failed else None,
        "seconds": round(seconds, 1),
        "variants": by_variant,
        "groups": groups(records),
        "known": {k: v for k, v in REASONS.items() if any(r.op == k and r.failed for r in records)},
    }


def show(result: dict[str, Any], most: int) -> None:
    """The table and the groups, on standard output."""
    print(f"{'variant':10} {'checks':>9} {'passed':>9} {'failed':>8} {'both raise':>11} {'%':>8}")
    for name, v in result["variants"].items():
        n = v["passed"] + v["failed"]
        print(f"{name:10} {n:9} {v['passed']:9} {v['failed']:8} {v['of which both raise']:11} {100 * v['passed'] / n:8.3f}")
    print(f"{'all':10} {result['checks']:9} {result['passed']:9} {result['failed']:8} {'':11} {result['percent'] or 0:8.3f}")
    print(f"{result['cases']} op x dtype of {result['operators']} operators, {result['cases without failure']} without failure")
    for group in result["groups"][:most]:
        print(f"\n{group['failures']:6} x {group['cause']}")
        print(f"         {', '.join(group['in'][:4])}{', ...' if len(group['in']) > 4 else ''} ({len(group['in'])})")


def main() -> None:
    args = parse()
    start = time.perf_counter()
    records = run(args, choose(args))
    result = summary(records, time.perf_counter() - start)
    show(result, args.groups)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.docs:
        DOCS.write_text(render(result, records))


if __name__ == "__main__":
    main()
