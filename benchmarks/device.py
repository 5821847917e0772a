"""What device neuron costs beside the plain CPU: operators, training steps, memory, import.

    python benchmarks/device.py                            # all tables, some minutes
    python benchmarks/device.py --only operators --json out.json
    python benchmarks/device.py --only operators --match conv

Everything runs in one process, where the two devices take turns; figures are medians over the turns. With one thread
(the default) times are the process's CPU time, which is what the wall shows where nobody else computes, and does not
suffer where somebody does; with ``--threads N`` they are the wall's. Simulated time is on, as it is by default.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from benchmarks import device_memory, device_ops, device_steps  # noqa: E402
from benchmarks.device_timing import Timing  # noqa: E402

SECTIONS = ("operators", "steps", "memory", "import")


def operators(timing: Timing, rounds: int, match: str, slowest: int) -> dict[str, Any]:
    """Prints the overhead of operators: the dearest, and how it is distributed."""
    rows = device_ops.measure(timing, rounds, match)
    if not rows:
        raise SystemExit(f"--match is {match!r}, which no statement of device_ops.yaml contains")
    rows.sort(key=lambda row: row.more_us, reverse=True)
    more = [row.more_us for row in rows]
    figures = {
        "count": len(rows),
        "median_us": statistics.median(more),
        "p90_us": device_ops.quantile(more, 0.9),
        "max_us": more[0],
        "median_ratio": statistics.median(row.neuron_us / row.cpu_us for row in rows),
    }
    print(f"\n{'operator, the dearest ' + str(slowest):<66}{'cpu us':>10}{'neuron us':>11}{'more us':>10}")  # fmt: skip
    for row in rows[:slowest]:
        name = row.statement if len(row.statement) <= 64 else row.statement[:61] + "..."
        print(f"{name:<66}{row.cpu_us:>10.2f}{row.neuron_us:>11.2f}{row.more_us:>10.2f}")
    print(
        f"{len(rows)} operators cost {figures['median_us']:.2f} us more at the median,"
        f" {figures['p90_us']:.2f} at the 90th percentile; times of the CPU's: {figures['median_ratio']:.2f}"
    )
    return {**figures, "rows": [row.as_dict() for row in rows]}


def steps(timing: Timing, count: int) -> dict[str, Any]:
    """Prints what a training step takes on each device."""
    print(f"\n{'training step':<34}{'cpu ms':>10}{'neuron ms':>11}{'ratio':>8}   losses")
    result = {}
    for name, build in device_steps.PROGRAMS.items():
        row = device_steps.measure(timing, build, count)
        losses = "equal" if row.equal_losses else "DIFFERENT"
        print(f"{name:<34}{row.cpu_ms:>10.1f}{row.neuron_ms:>11.1f}{row.ratio:>8.3f}   {losses}", flush=True)  # fmt: skip
        result[name] = row.as_dict()
    return result


def memory(timing: Timing, rounds: int) -> dict[str, Any]:
    """Prints what it takes to allocate and free, with and without memory history."""
    rows = device_memory.measure(timing, rounds)
    columns = list(next(iter(rows.values())))
    print(f"\n{'allocate and free, us':<34}" + "".join(f"{column:>16}" for column in columns))
    for name, us in rows.items():
        print(f"{name:<34}" + "".join(f"{us[column]:>16.3f}" for column in columns))
    return rows


def import_ms(runs: int) -> dict[str, float]:
    """Prints and returns the CPU milliseconds of importing torch, and of the device after it; the least of ``runs``."""
    # In one process each, since two imports of torch differ by more than what the device adds.
    code = """
import time
start = time.process_time()
import torch
plain = time.process_time()
torch._import_device_backends()  # what `import torch` does unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
print((plain - start) * 1e3, (time.process_time() - plain) * 1e3)
"""
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    pairs = [
        [float(v) for v in subprocess.check_output([sys.executable, "-c", code], env=env).split()]
        for _ in range(runs)
    ]
    result = {"torch": min(p for p, _ in pairs), "device": min(d for _, d in pairs)}
    print(f"\nimport torch: {result['torch']:.0f} ms, and {result['device']:.0f} ms for the device")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--match", default="", help="operators whose statement contains this")
    parser.add_argument("--slowest", type=int, default=10, help="operators to print (10)")
    parser.add_argument("--rounds", type=int, default=50, help="turns of an operator (50)")
    parser.add_argument("--steps", type=int, default=20, help="training steps a device (20)")
    parser.add_argument("--threads", type=int, default=1, help="threads of an operator (1)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(SECTIONS):
        parser.error(f"unknown sections {sorted(unknown)}, expected some of {', '.join(SECTIONS)}")
    torch.set_num_threads(options.threads)
    timing = Timing(time.process_time if options.threads == 1 else time.perf_counter)
    run: dict[str, Callable[[], Any]] = {
        "operators": lambda: operators(timing, options.rounds, options.match, options.slowest),
        "steps": lambda: steps(timing, options.steps),
        "memory": lambda: memory(timing, options.rounds),
        "import": lambda: import_ms(5),
    }
    environment = {
        "torch": torch.__version__,
        "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    print("  ".join(f"{key}: {value}" for key, value in environment.items()))
    result = {name: run[name]() for name in SECTIONS if name in options.only.split(",")}
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": environment, **result}, indent=1))


if __name__ == "__main__":
    main()
