"""What simulated time costs the wall clock: clock, trace and fidelity on, against all of them off.

``python benchmarks/simulation.py [--pairs N] [--json FILE]``: an operator, a small collective, and the step of the
recipe llama3_debug on four ranks. The two sides take turns, and medians of the pairs' ratios count.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from neuron_dist import _C  # noqa: E402
from neuron_dist.testing import run_ranks  # noqa: E402

SIDES = ("off", "clock", "clock and trace")


def switch(side: str, folder: str, rank: int) -> None:
    """Turns the clock and the trace of this process on or off."""
    _C._stop_trace()
    _C._set_simulation(side != "off")
    if side == "clock and trace":
        header = {"format": 1, "rank": rank, "world_size": 1, "cluster": {}, "dtypes": {}}
        _C._start_trace(f"{folder}/rank_{rank:05d}.trace", json.dumps(header), 1 << 30)


def us_a_call(fn: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    return (time.perf_counter() - start) / calls * 1e6


def alternate(
    fn: Callable[[], Any], calls: int, rounds: int, folder: str, rank: int
) -> dict[str, float]:
    """Median microseconds of a call for each side."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            switch(side, folder, rank)
            times[side].append(us_a_call(fn, calls))
    switch("clock", folder, rank)
    return {side: statistics.median(t) for side, t in times.items()}


def operators(rounds: int, folder: str) -> dict[str, dict[str, float]]:
    x, y = (torch.randn(64, 64, device="neuron") for _ in range(2))
    many = [torch.randn(64, device="neuron") for _ in range(50)]
    cases: dict[str, Callable[[], Any]] = {
        "add 64x64": lambda: x + y,
        "mm 64x64": lambda: x @ y,
        "foreach_add 50x64": lambda: torch._foreach_add(many, 1.0),
        "empty 64x64": lambda: torch.empty(64, 64, device="neuron"),
    }
    return {name: alternate(fn, 5000, rounds, folder, 0) for name, fn in cases.items()}


def all_reduce(rounds: int, folder: str) -> dict[str, float]:
    """In a rank: an all_reduce of 256 bytes."""
    x = torch.zeros(64, device="neuron")
    return alternate(lambda: dist.all_reduce(x), 2000, rounds, folder, dist.get_rank())


def job_seconds(on: bool, steps: int) -> float:
    """Wall seconds of a step of the main job, by its own summary."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    settings = [f"training.steps={steps}"]
    if not on:
        env |= {"NEURON_DIST_SIMULATION": "off", "NEURON_DIST_FIDELITY": "off"}
        settings.append("trace=null")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    command += ["-m", "neuron_dist.train", "--recipe", "llama3_debug", "--set", *settings]
    with tempfile.TemporaryDirectory() as folder:
        env["NEURON_DIST_TRACE"] = f"{folder}/trace" if on else ""
        env["TMPDIR"] = folder  # where torchrun leaves a folder of its own
        done = subprocess.run(
            [*command, f"dump_folder={folder}"],
            env=env,
            capture_output=True,
            text=True,
            cwd=HERE.parent,
            check=True,
        )
    found = re.search(r"([\d.]+) s a step", done.stdout)
    if found is None:
        raise SystemExit(f"the job printed no time:\n{done.stdout[-2000:]}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the small cases")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs of the main job")
    parser.add_argument("--steps", type=int, default=20, help="steps of a run of the main job")
    args = parser.parse_args()
    torch.set_num_threads(1)

    result: dict[str, Any] = {"torch": torch.__version__, "us": {}}
    with tempfile.TemporaryDirectory() as folder:
        rows = operators(args.rounds, folder)
        in_ranks = importlib.import_module("benchmarks.simulation").all_reduce  # not of __main__
        rows["all_reduce 256 B, 2 ranks"] = run_ranks(2, in_ranks, args.rounds, folder)[0]
    print(f"{'wall us a call':<28}" + "".join(f"{side:>18}" for side in SIDES) + f"{'more':>10}")
    for name, us in rows.items():
        result["us"][name] = us
        values = "".join(f"{us[side]:>18.3f}" for side in SIDES)
        print(f"{name:<28}{values}{us['clock and trace'] - us['off']:>10.3f}")
    if args.pairs:
        pairs = [
            (job_seconds(False, args.steps), job_seconds(True, args.steps))
            for _ in range(args.pairs)
        ]
        ratio = statistics.median(on / off for off, on in pairs)
        result["job"] = {"pairs_s": pairs, "ratio": ratio}
        print(f"\nllama3_debug, 4 ranks, wall s a step, off / on (clock, trace, fidelity): {pairs}")
        print(f"median ratio {ratio:.3f}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
