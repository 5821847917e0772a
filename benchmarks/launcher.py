#!/usr/bin/env python
"""From a command to the first collective: ``neuron-dist run`` beside torchrun.

    python benchmarks/launcher.py                       # 4 and 64 ranks, both launchers
    python benchmarks/launcher.py --ranks 4 --rounds 5 --json launcher.json

The program does one all_reduce of four numbers on device neuron. Columns:

    first       seconds from the command to the end of rank 0's first collective
    imported    of these, seconds since torch was imported, where ranks can be started (neuron-dist) or have been (torchrun)
    done        seconds from the command to its end
    cpu         seconds of CPU of all processes
    memory      GiB, the most that all processes together held (sum of PSS, looked at twice a second)

Launchers take turns, and medians over the rounds are printed: other work on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parent.parent
LAUNCHERS = {
    "neuron-dist run": ("-m", "launch", "run", "-n"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
}
COLUMNS = ("first", "imported", "done", "cpu", "memory")
PROGRAM = """
import os, time
import torch
import torch.distributed as dist

def started(pid):
    with open(f"/proc/{pid}/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

imported = started(os.getppid()) if os.environ["FORKED"] == "1" else time.time()
dist.init_process_group("neuron")
x = torch.full((4,), 1.0, device="neuron")
dist.all_reduce(x)
if dist.get_rank() == 0:
    now = time.time()
    print("MEASURED", now - float(os.environ["STARTED"]), now - imported, flush=True)
assert x[0].item() == dist.get_world_size()
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all figures here")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        turns = [
            (name, ranks)
            for _ in range(options.rounds)
            for ranks in options.ranks
            for name in options.launchers
        ]
        for launcher, ranks in tqdm(turns, unit="run"):
            found.setdefault((launcher, ranks), []).append(measure(launcher, ranks, program))
    print(f"{'launcher':<16}{'ranks':>6}" + "".join(f"{c:>10}" for c in COLUMNS))
    for (launcher, ranks), rounds in sorted(found.items(), key=lambda item: item[0][1]):
        medians = [statistics.median(r[c] for r in rounds) for c in COLUMNS]
        print(f"{launcher:<16}{ranks:>6}" + "".join(f"{m:>10.2f}" for m in medians))
    print(f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}; medians of {options.rounds} round(s)")
    if options.json:
        rows = [{"launcher": name, "ranks": n, "rounds": r} for (name, n), r in found.items()]
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg(), "rows": rows}, indent=1))


def measure(launcher: str, ranks: int, program: Path) -> dict[str, float]:
    """One run of ``launcher``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.time()
    env = {
        **os.environ,
        "STARTED": str(start),
        "FORKED": str(int(launcher != "torchrun")),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(program.parent),  # where torchrun leaves a folder of its own
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    process = subprocess.Popen(
        [sys.executable, *LAUNCHERS[launcher], str(ranks), str(program)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    peaks = [0]
    watcher = threading.Thread(target=watch, args=(process, peaks))
    watcher.start()
    out, err = process.communicate()
    done = time.time() - start
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"{launcher} with {ranks} ranks ended with {process.returncode}:\n{err}")
    first, imported = map(float, next(x for x in out.splitlines() if x.startswith("MEASURED")).split()[1:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first": first, "imported": imported, "done": done, "cpu": cpu, "memory": max(peaks) / 2**20}


def watch(process: subprocess.Popen[str], peaks: list[int]) -> None:
    """Adds up the PSS of the process and all below it, in KiB, as long as it runs."""
    while process.poll() is None:
        peaks.append(sum(map(pss, descendants(process.pid))))
        time.sleep(0.5)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            children.setdefault(parent, []).append(int(entry))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()
