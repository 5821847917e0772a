#!/usr/bin/env python
"""TorchTitan's own integration tests on neuron-dist: its runner, its lists of cases, our ``run_train.sh``.

    python examples/titan_integration/run.py --checkout ~/torchtitan --out results       # as its run_tests.py runs them
    python examples/titan_integration/run.py --out results --only pp_1f1b hsdp             # cases of the installed wheel

A checkout's runner asks for nothing but a ``run_train.sh`` in the current directory. So this makes a directory that has
all that the checkout has, with ours in the place of its own, and calls the runner there, once a case. The wheel has the
configs of the cases but neither runner nor assets: without a checkout those of cases.yaml are run one after the other,
on text of the Python installation. What needs CUDA is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIGS = "torchtitan_recipes.tests.features"
# of a case: where a config that loads what another has saved looks for it
OUTPUT = "$RUNNER_TEMP/artifacts-to-be-uploaded"
MICROBATCHES = 8  # of the case pp_custom_csv
DATA = yaml.safe_load((HERE / "cases.yaml").read_text())


@dataclass(frozen=True)
class Case:
    """A case of the list, and the commands that it consists of."""

    name: str
    ranks: int
    commands: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="a TorchTitan checkout of the installed version")
    parser.add_argument("--out", type=Path, required=True, help="a folder for logs and checkpoints; must be empty")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these cases")
    parser.add_argument("--ranks", type=int, default=8, help="leave cases of more ranks out")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a case may take")
    parser.add_argument("--args", default="", help="more TorchTitan flags for the wheel's cases, such as '--training.steps 3'")
    options = parser.parse_args()
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        parser.error(f"--out: {out} is not empty")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cases = of_checkout(options.checkout.resolve(), place) if options.checkout else of_wheel(place, options.args)
        if unknown := set(options.only) - {case.name for case in cases}:
            parser.error(f"--only: no case {min(unknown)!r}; known: {', '.join(case.name for case in cases)}")
        chosen = [case for case in cases if not options.only or case.name in options.only]
        verdicts = {}
        for case in tqdm(chosen, unit="case"):
            verdicts[case.name] = verdict(case, place, out, options)
            tqdm.write(f"{case.name:<28}{case.ranks:>3} ranks  {verdicts[case.name]}")
    passed = sum(v.startswith("passed") for v in verdicts.values())
    failed = sum(v.startswith("failed") for v in verdicts.values())
    print(f"{passed} passed, {failed} failed, {len(verdicts) - passed - failed} left out; logs in {out}")
    sys.exit(1 if failed else 0)


def of_wheel(place: Path, more: str) -> list[Case]:
    """The cases of the installed TorchTitan, with assets that are made here."""
    from neuron_dist.titan.corpus import python_corpus
    from neuron_dist.titan.tokenizer import tokenizer_folder

    assets = place / "tests" / "assets"
    (assets / "c4_test").mkdir(parents=True)
    (assets / "tokenizer").symlink_to(tokenizer_folder())
    rows = "".join(json.dumps({"text": text}) + "\n" for text in python_corpus(2_000_000))
    (assets / "c4_test" / "data.json").write_text(rows)
    (assets / "sft_test").mkdir()
    questions = [{"question": f"What is {a} + {b}?", "answer": f"{a + b}"} for a in range(2, 12) for b in range(1, 5)]
    (assets / "sft_test" / "data.json").write_text(json.dumps(questions))
    (assets / "custom_schedule.csv").write_text(looped_schedule(MICROBATCHES))
    (place / "run_train.sh").symlink_to(HERE / "run_train.sh")
    return [
        Case(
            name,
            case["ranks"],
            [
                f"MODULE={CONFIGS} CONFIG={config} NGPU={case['ranks']} "
                f"LOG_RANK={','.join(map(str, range(case['ranks'])))} ./run_train.sh --dump_folder {OUTPUT}/{name} "
                f"{case.get('args', '')} {more}"
                for config in case["configs"]
            ],
        )
        for name, case in DATA["cases"].items()
    ]


def looped_schedule(microbatches: int) -> str:
    """A pipeline of two ranks with two stages each, all forwards before all backwards, in torch's CSV: a row a rank."""

    def phase(stage: int, action: str) -> list[str]:
        return [f"{stage}{action}{microbatch}" for microbatch in range(microbatches)]

    first = [*phase(0, "F"), *phase(2, "F"), "", "", *phase(2, "B"), *phase(0, "B")]
    second = ["", *phase(1, "F"), *phase(3, "F"), *phase(3, "B"), *phase(1, "B"), ""]
    return ",".join(first) + "\n" + ",".join(second) + "\n"


def of_checkout(checkout: Path, place: Path) -> list[Case]:
    """The cases of a checkout's list ``features``, as its runner runs them."""
    for entry in checkout.iterdir():
        if entry.name != "run_train.sh":
            (place / entry.name).symlink_to(entry)
    (place / "run_train.sh").symlink_to(HERE / "run_train.sh")
    listing = (
        "from neuron_dist.titan import shims; shims.stub_triton_kernels(); import json; "
        "from tests.integration_tests.features import build_features_test_list as f; print('CASES', json.dumps([(t.test_name, t.ngpu) for t in f() if not t.disabled]))"
    )
    done = subprocess.run([sys.executable, "-c", listing], cwd=place, env=environment(), capture_output=True, text=True)
    found = next((line for line in done.stdout.splitlines() if line.startswith("CASES ")), None)
    if found is None:
        sys.exit(f"{checkout}: its tests/integration_tests/features.py cannot be read:\n{done.stderr[-2000:]}")
    runner = f"{sys.executable} {HERE / 'module.py'} tests.integration_tests.run_tests"
    return [
        Case(name, ranks, [f"{runner} {OUTPUT} --test_suite features --test_name '{name}' --ngpu {ranks}"])
        for name, ranks in json.loads(found.removeprefix("CASES "))
    ]


def verdict(case: Case, place: Path, out: Path, options: argparse.Namespace) -> str:
    """Runs a case; what came of it."""
    needs = next((why for word, why in DATA["needs"].items() if word in case.name), None)
    if needs:
        return f"left out: needs {needs}"
    if case.ranks > options.ranks:
        return f"left out: {case.ranks} ranks"
    start = time.monotonic()
    log = out / f"{case.name}.log"
    lengths = [length for word, length in DATA["seq_len"].items() if word in re.split(r"\W|_", case.name)]
    variables = {"SEQ_LEN": str(max(lengths, default=128)), **environment(), "RUNNER_TEMP": str(out / case.name)}
    for command in case.commands:
        with log.open("a") as file:
            file.write(f"$ {command}\n")
            file.flush()
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=place, env=variables, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(options.timeout)
            except subprocess.TimeoutExpired:
                return f"failed: still running after {options.timeout:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):  # the launcher, if it is there; its ranks end with it
                    os.killpg(process.pid, signal.SIGKILL)
        if status != 0:
            said = log.read_text(errors="replace")
            if refused := re.search(r"not supported here: (.*)", said):
                return f"left out: {refused[1]}"
            if absent := re.search(r"Couldn't reach '(.+?)' on the Hub \(OfflineModeIsEnabled\)", said):
                return f"left out: needs {absent[1]} of the hub; HF_HUB_OFFLINE=0 HF_DATASETS_OFFLINE=0 would fetch it"
            return f"failed: {reason(said)}"
    losses = re.findall(r"loss: +(?:\x1b\[[\d;]*m)?([\d.]+)", log.read_text(errors="replace"))
    return f"passed in {time.monotonic() - start:.0f} s" + (f", last loss {losses[-1]}" if losses else "")


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**offline, **os.environ, "PYTHONPATH": path, "PYTHON": sys.executable}


def reason(log: str) -> str:
    """The exception that the launcher told first, or the last line."""
    told = re.search(r"failed first:.*?^([\w.]+(?:Error|Exception)[^\n]*)", log, re.DOTALL | re.MULTILINE)
    return (told[1] if told else log.strip().splitlines()[-1])[:160]


if __name__ == "__main__":
    main()
