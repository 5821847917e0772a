"""Every architecture of transformers on the device: forward and one training step, against the CPU.

    python benchmarks/architectures.py --json architectures.jsonl           # goes on where it stopped
    python benchmarks/architectures.py --only llama 'bert*'
    python benchmarks/architectures.py --json architectures.jsonl --docs    # writes its part of docs/coverage.md

For each model type of AutoModel's mapping: a tiny configuration, random weights, the same on the CPU and on
``neuron``; one forward pass, one backward pass, one SGD step. Outputs, gradients and new weights have to be equal,
bit for bit. What the CPU itself does not run on the inputs made here is told apart and is no verdict on the device.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
from neuron_dist.testing.architectures.check import Row
from neuron_dist.testing.architectures.page import render, summary
from neuron_dist.testing.architectures.sweep import all_kinds, run
from neuron_dist.testing.op_docs import into_page

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "coverage.md"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="one row a line; what FILE has is not run again (see --again)",
    )
    parser.add_argument("--only", nargs="+", metavar="TYPE", help="model types, wildcards allowed")
    parser.add_argument(
        "--again", nargs="+", default=[], metavar="OUTCOME", help="run these again, e.g. 'not run'"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--docs", action="store_true", help=f"write into docs/{DOCS.name}")
    return parser.parse_args(argv)


def chosen(patterns: list[str] | None) -> list[str]:
    kinds = all_kinds()
    if patterns is None:
        return kinds
    for pattern in patterns:
        if not fnmatch.filter(kinds, pattern):
            near = (
                ", ".join(difflib.get_close_matches(pattern, kinds)) or "docs/coverage.md has all"
            )
            sys.exit(f"--only {pattern}: not a model type of AutoModel; the nearest: {near}")
    return [k for k in kinds if any(fnmatch.fnmatchcase(k, p) for p in patterns)]


def rows_of(path: Path | None) -> dict[str, Row]:
    """Rows of an earlier run; of a type that was run again the last one."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {row.model: row for row in (Row(**json.loads(line)) for line in lines)}


def main() -> None:
    from tqdm import tqdm

    args = parse()
    rows = rows_of(args.json)
    kinds = chosen(args.only)
    todo = [k for k in kinds if k not in rows or rows[k].outcome in args.again]
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=len(todo), unit="model", disable=None))
        file = stack.enter_context(args.json.open("a")) if args.json else None
        for row in run(todo, args.jobs):
            rows[row.model] = row
            if file is not None:
                file.write(json.dumps(asdict(row)) + "\n")
                file.flush()
            bar.set_postfix_str(f"{row.model}: {row.outcome}", refresh=False)
            bar.update()
    if args.docs:
        section = render(list(rows.values()), len(all_kinds()))
        DOCS.write_text(into_page(DOCS.read_text(), "architectures", section))
    print(summary([rows[kind] for kind in kinds]))


if __name__ == "__main__":
    main()
