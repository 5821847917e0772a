"""``python benchmarks/titan_matrix.py``: TorchTitan's features on neuron beside Gloo, one case after the other.

The cases are in titan_matrix.yaml. Each is trained on Gloo (on the CPU) and on neuron from the same weights, and the
losses of all steps are compared: to 5 digits on up to 2 ranks, to 3 beyond, where sums have several orders.

With ``--json FILE`` results are also appended to FILE.jsonl as they come, and ``--resume`` goes on from there.
The exit status is 1 where a case failed or differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
from neuron_dist.testing.titan_cases import (
    BACKENDS,
    Case,
    Outcome,
    Seeds,
    compare,
    load_cases,
    refuse_case,
    run_case,
)
from neuron_dist.testing.titan_docs import render, table

HERE = Path(__file__).resolve().parent
CASES = HERE / "titan_matrix.yaml"
DOCS = HERE.parent / "docs" / "titan.md"
Results = dict[str, dict[str, Outcome]]
"""Case -> backend -> outcome."""


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="cases whose name has a match; default all"
    )
    parser.add_argument(
        "--backend",
        nargs="+",
        default=list(BACKENDS),
        choices=list(BACKENDS),
        help="default both; one alone is not compared",
    )
    parser.add_argument(
        "--cases", type=Path, default=CASES, metavar="FILE", help="another YAML file"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="for one launch of ranks"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="summary; the records go to FILE.jsonl"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep what FILE.jsonl has, and run the rest"
    )
    parser.add_argument(
        "--retry", action="store_true", help="with --resume: run what has failed again"
    )
    parser.add_argument(
        "--run-nothing", action="store_true", help="with --resume: only show what FILE.jsonl has"
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep the runs' folders and seed checkpoints here"
    )
    parser.add_argument(
        "--docs", action="store_true", help=f"write the table of docs/{DOCS.name} from the results"
    )
    args = parser.parse_args(argv)
    if args.resume and args.json is None:
        parser.error("--resume needs --json FILE, whose FILE.jsonl has the results so far")
    for option in ("retry", "run_nothing"):
        if getattr(args, option) and not args.resume:
            parser.error(f"--{option.replace('_', '-')} needs --resume")
    return args


def load(path: Path, cases: list[Case]) -> Results:
    """Outcomes of an earlier run, of cases that are still the same. A last line that was cut off is left out."""
    same = {case.name: case.fingerprint for case in cases}
    found: Results = {}
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if same.get(record["case"]) == record["fingerprint"]:
            outcome = Outcome.from_json(record["outcome"])
            found.setdefault(record["case"], {})[record["backend"]] = outcome
    return found


def run(args: argparse.Namespace, cases: list[Case]) -> Results:
    """Runs what is not there yet, with a progress bar, and returns all outcomes."""
    from tqdm import tqdm

    lines: Path | None = args.json.with_suffix(args.json.suffix + "l") if args.json else None
    results = load(lines, cases) if args.resume and lines is not None and lines.exists() else {}
    todo = [
        (case, backend)
        for case in cases
        for backend in _backends(case, args.backend)
        if _is_due(results.get(case.name, {}).get(backend), args)
    ]
    with ExitStack() as stack:
        work = args.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="titan_matrix."))
        )
        seeds = Seeds(work.resolve() / "seeds")
        bar = stack.enter_context(tqdm(total=len(todo), unit="run", smoothing=0.05, disable=None))
        sink = None
        if lines is not None:
            lines.parent.mkdir(parents=True, exist_ok=True)
            sink = stack.enter_context(lines.open("a" if args.resume else "w"))
        for case, backend in todo:
            bar.set_postfix_str(f"{case.name}, {backend}"[:40])
            if case.refused:
                outcome = refuse_case(case)
            else:
                folder = work.resolve() / "runs" / re.sub(r"\W+", "_", f"{case.name} {backend}")
                outcome = run_case(case, backend, folder, seeds, args.timeout)
            results.setdefault(case.name, {})[backend] = outcome
            if sink is not None:
                record = {"case": case.name, "backend": backend, "fingerprint": case.fingerprint}
                sink.write(json.dumps(record | {"outcome": outcome.as_json()}) + "\n")
                sink.flush()
            bar.update()
    return results


def _backends(case: Case, asked: list[str]) -> list[str]:
    """The backends that a case is run on; the check is asked once, for neuron."""
    return [b for b in asked if not (b == "gloo" and (case.gloo or case.refused))]


def _is_due(known: Outcome | None, args: argparse.Namespace) -> bool:
    if args.run_nothing:
        return False
    return known is None or (args.retry and known.error != "")


def main() -> None:
    args = parse()
    pattern = re.compile(args.only)
    cases = [case for case in load_cases(args.cases) if pattern.search(case.name)]
    if not cases:
        sys.exit(f"--only: {args.only}: no case of {args.cases} has a match")
    results = run(args, cases)
    verdicts = {case.name: compare(case, results.get(case.name, {})) for case in cases}
    print(table(cases, results, verdicts))
    if args.json is not None:
        summary = {
            case.name: {
                "ranks": max(run.ranks for run in case.runs),
                "ok": verdicts[case.name].ok,
                "verdict": verdicts[case.name].text,
                **{b: o.as_json() for b, o in results.get(case.name, {}).items()},
            }
            for case in cases
        }
        args.json.write_text(json.dumps(summary, indent=1) + "\n")
    if args.docs:
        DOCS.write_text(render(cases, results, verdicts))
    sys.exit(0 if all(v.ok for v in verdicts.values()) else 1)


if __name__ == "__main__":
    main()
