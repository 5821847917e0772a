"""``python benchmarks/op_coverage.py``: torch's own databases on neuron against the CPU.

Suite ``ops``: every sample of every operator x dtype that the CPU supports, forward, backward, double backward, forward mode, ``out=``,
in place, on non-contiguous and conjugated inputs, and the inputs that should raise. Results must be the CPU's to the
last bit, with the same dtype, shape, strides and aliases; random operators are compared by metadata. Other suites: torch's Python references, modules, optimizers, ...

With ``--json FILE`` results are also appended to FILE.jsonl as they come, and ``--resume`` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
from neuron_dist.testing.op_checks import LAYOUTS
from neuron_dist.testing.op_docs import into_page, render, summary
from neuron_dist.testing.op_workers import Case, Record, run_cases, stable_hash
from neuron_dist.testing.suites import SUITES

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "coverage.md"


def choose(args: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    suite = SUITES[args.suite]
    chosen = [c for c in suite.cases(args.layouts) if re.search(args.ops, c.op)]
    if args.dtypes:
        known = {case.dtype for case in chosen}
        unknown = set(args.dtypes) - known
        if unknown:
            sys.exit(
                f"--dtypes: {', '.join(sorted(unknown))}: expected some of {', '.join(sorted(known))}"
            )
        chosen = [case for case in chosen if case.dtype in args.dtypes]
    return [
        case
        for case in chosen
        if stable_hash(case) < args.hash_percent or (args.usual and suite.usual(case))
    ]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--suite", default="ops", choices=SUITES, help="what to run; default: the operators"
    )
    parser.add_argument(
        "--ops", default="", metavar="REGEX", help="entries whose name has a match; default all"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=[],
        metavar="DTYPE",
        help="float32, complex64, ...; default all",
    )
    parser.add_argument("--layouts", nargs="+", default=["strided"], choices=["strided", *LAYOUTS])
    parser.add_argument("--variants", nargs="+", default=[], metavar="VARIANT", help="default all")
    parser.add_argument(
        "--hash-percent",
        type=int,
        default=100,
        metavar="P",
        help="this part of op x dtype, always the same",
    )
    parser.add_argument(
        "--usual", action="store_true", help="besides that part, every entry in one dtype"
    )
    parser.add_argument(
        "--samples", type=int, default=None, metavar="N", help="samples of each; default all"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="worker processes")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for one check")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="summary; the records go to FILE.jsonl"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what FILE.jsonl has, and run the rest"
    )
    parser.add_argument(
        "--groups", type=int, default=40, metavar="N", help="failure groups to print"
    )
    parser.add_argument(
        "--docs", action="store_true", help=f"write the suite's section of docs/{DOCS.name}"
    )
    args = parser.parse_args(argv)
    if args.resume and args.json is None:
        parser.error("--resume needs --json FILE, whose FILE.jsonl has the results so far")
    known = SUITES[args.suite].meaning
    wrong = sorted(set(args.variants) - set(known))
    if wrong:
        parser.error(f"--variants: {', '.join(wrong)}: suite {args.suite} has {', '.join(known)}")
    args.variants = args.variants or list(known)
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

    lines: Path | None = args.json.with_suffix(args.json.suffix + "l") if args.json else None
    known = load(lines) if args.resume and lines is not None and lines.exists() else {}
    todo = [case for case in cases if case not in known]
    records = [known[case] for case in cases if case in known]
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=len(todo), unit="case", smoothing=0.05, disable=None))
        sink = None
        if lines is not None:
            lines.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(lines.open("a" if args.resume else "w"))
        for record in run_cases(
            todo,
            frozenset(args.variants),
            suite=args.suite,
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
    return sorted(records, key=lambda r: (r.op, r.dtype, r.layout))


def show(result: dict[str, Any], most: int) -> None:
    """The table and the groups, on standard output."""
    print(f"{'':12} {'checks':>9} {'passed':>9} {'failed':>7} {'CPU raises':>10} {'% passed':>9}")
    rows = {**result["variants"], **result["layouts"], "all": result}
    for name, v in rows.items():
        n = v["passed"] + v["failed"]
        share = 100 * v["passed"] / n if n else 0.0
        print(f"{name:12} {n:9} {v['passed']:9} {v['failed']:7} {v['raised']:10} {share:9.3f}")
    print(
        f"{result['cases']} combinations of {result['operators']} entries with dtypes and layouts, "
        f"{result['cases_without_failure']} without failure"
    )
    for group in result["groups"][:most]:
        print(f"\n{group['failures']:6} x {group['cause']}")
        more = ", ..." if len(group["in"]) > 4 else ""
        print(f"         {', '.join(group['in'][:4])}{more} ({len(group['in'])})")


def subset(args: argparse.Namespace) -> str:
    """The options that choose what is run, as they are typed."""
    out = ""
    if args.layouts != ["strided"]:
        out += f" --layouts {' '.join(args.layouts)}"
    if args.hash_percent != 100:
        out += f" --hash-percent {args.hash_percent}"
    for name, value in (("--samples", args.samples), ("--usual", args.usual)):
        if value:
            out += f" {name}" + ("" if value is True else f" {value}")
    return out


def main() -> None:
    args = parse()
    start = time.perf_counter()
    records = run(args, choose(args))
    result = summary(args.suite, records, time.perf_counter() - start, subset(args))
    show(result, args.groups)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.docs:
        section = render(args.suite, result)
        DOCS.write_text(into_page(DOCS.read_text(), args.suite, section))


if __name__ == "__main__":
    main()
