"""Latency of collectives: backend neuron beside Gloo, MPICH and plain memory copies, in one run.

    python benchmarks/process_group.py                          # all_reduce, 2 and 4 ranks, 256 B to 64 MB
    python benchmarks/process_group.py --op reduce_scatter --ranks 4 --json out.json

Candidates take turns at every size, several rounds of them, each in rank processes of its own that sleep while the
others are measured: on a noisy machine all see the same noise. A number is the median latency of a call, of the
slowest rank. "Bytes" is what one rank holds of the collective's whole tensor: the input of all_reduce,
reduce_scatter, all_to_all and broadcast, the output of all_gather.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
SIZES = [256 * 4**i for i in range(10)]
CANDIDATES = {
    "neuron": "neuron tensors, zero-copy",
    "neuron-cpu": "CPU tensors on backend neuron",
    "gloo": "CPU tensors on Gloo",
    "memcpy": "each rank copies the same bytes once",
    "mpich": "MPICH through mpi4py",
}
ROUND_S = 0.15
"""Time a candidate is given for one size in one round."""

START_S = 120
"""Time that ranks may take to start."""


# --- the ranks -------------------------------------------------------------------------------------------------------


def torch_call(backend: str, device: str, op: str, nbytes: int) -> Callable[[], object]:
    """One call of ``op`` by torch.distributed, tensors made beforehand."""
    import torch
    import torch.distributed as dist

    world_size = dist.get_world_size()
    whole = torch.zeros(max(nbytes // 4, world_size), device=device)
    part = torch.zeros(whole.numel() // world_size, device=device)
    whole = whole[: part.numel() * world_size]
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_single(part, whole)
    if op == "all_gather":
        return lambda: dist.all_gather_single(whole, part)
    if op == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    out = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(out, whole)


def mpi_call(op: str, nbytes: int) -> Callable[[], object]:
    """The same by mpi4py."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    whole = np.full(max(nbytes // 4, world.size), 0, dtype=np.float32)
    part = np.full(whole.size // world.size, 0, dtype=np.float32)
    whole = whole[: part.size * world.size]
    if op == "all_reduce":
        return lambda: world.Allreduce(MPI.IN_PLACE, whole)
    if op == "reduce_scatter":
        return lambda: world.Reduce_scatter_block(whole, part)
    if op == "all_gather":
        return lambda: world.Allgather(part, whole)
    if op == "broadcast":
        return lambda: world.Bcast(whole, 0)
    out = np.empty_like(whole)
    return lambda: world.Alltoall(whole, out)


def copy_call(nbytes: int) -> Callable[[], object]:
    """A memory copy of the same bytes."""
    import numpy as np

    source = np.ones(nbytes, dtype=np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def prepare(
    candidate: str,
) -> tuple[Callable[[str, int], Callable[[], object]], Callable[[], object]]:
    """What makes a call of the candidate, and its barrier."""
    if candidate == "memcpy":
        return lambda op, nbytes: copy_call(nbytes), lambda: None
    if candidate == "mpich":
        from mpi4py import MPI

        return mpi_call, MPI.COMM_WORLD.Barrier
    import torch
    import torch.distributed as dist

    backend = candidate.partition("-")[0]
    device = "neuron" if candidate == "neuron" else "cpu"
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    return lambda op, nbytes: torch_call(backend, device, op, nbytes), dist.barrier


def work(candidate: str, address: str) -> None:
    """The life of a rank: measures what it is told to, and sleeps in between."""
    with Client(address, "AF_UNIX") as boss:
        try:
            make, barrier = prepare(candidate)
        except Exception as error:
            boss.send(f"{type(error).__name__}: {error}")
            return
        boss.send(None)
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        while True:
            try:
                op, nbytes, count = boss.recv()
            except EOFError:
                break
            if (op, nbytes) not in calls:
                calls = {(op, nbytes): make(op, nbytes)}
            call = calls[op, nbytes]
            barrier()
            boss.send(measure(call, count))
    os._exit(0)  # peers leave at the same moment; nobody is left to say goodbye to


def measure(call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each of ``count`` calls."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


# --- the boss --------------------------------------------------------------------------------------------------------


@dataclass
class Team:
    """The ranks of one candidate."""

    candidate: str
    ranks: list[Connection]
    processes: list[subprocess.Popen]

    def run(self, op: str, nbytes: int, count: int) -> list[list[float]]:
        """Times of the calls of each rank."""
        for rank in self.ranks:
            rank.send((op, nbytes, count))
        return [rank.recv() for rank in self.ranks]

    def round(self, op: str, nbytes: int) -> list[list[float]]:
        """As many calls as fit into a round; the first few, which warm up, do not count."""
        warm = self.run(op, nbytes, 3)
        slowest = max(min(times) for times in warm)
        return self.run(op, nbytes, int(min(max(ROUND_S / max(slowest, 1e-7), 3), 3000)))

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_team(candidate: str, world_size: int) -> Team | str:
    """Starts the ranks of a candidate, or says why it cannot take part."""
    if candidate == "mpich" and not find_mpiexec():
        return "mpi4py or mpich is not installed (pip install 'neuron-dist[bench]')"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        address = str(Path(folder) / "boss")
        with Listener(address, "AF_UNIX", backlog=world_size) as listener:
            listener._listener._socket.settimeout(START_S)  # type: ignore[attr-defined]
            # -P: this file's folder must not stand on the path, where its name hides the package `collectives`
            command = [sys.executable, "-P", __file__, "--work", candidate, "--address", address]
            processes = launch(candidate, world_size, command)
            team = Team(candidate, [], processes)
            try:
                team.ranks = [listener.accept() for _ in range(world_size)]
            except TimeoutError:
                for process in processes:
                    process.kill()
                return "its ranks did not start"
    problems = [problem for rank in team.ranks if (problem := _receive(rank))]
    if problems:
        team.close()
        return problems[0]
    return team


def _receive(rank: Connection) -> str | None:
    try:
        return rank.recv() if rank.poll(START_S) else "its ranks did not get ready"
    except EOFError:
        return "a rank ended at once"


def launch(candidate: str, world_size: int, command: list[str]) -> list[subprocess.Popen]:
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    if candidate == "mpich":
        return [subprocess.Popen([find_mpiexec() or "", "-n", str(world_size), *command], env=env)]
    env |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return [
        subprocess.Popen(command, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world_size)
    ]


def find_mpiexec() -> str | None:
    """The mpiexec of the wheel, which stands beside the interpreter, and belongs to mpi4py's MPI."""
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        return None
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bench(
    world_size: int, op: str, sizes: list[int], candidates: list[str], rounds: int
) -> list[dict]:
    """One row a size: the median seconds of each candidate that takes part."""
    teams: list[Team] = []
    for candidate in candidates:
        team = start_team(candidate, world_size)
        if isinstance(team, Team):
            teams.append(team)
        else:
            print(f"{candidate} is left out: {team.splitlines()[0]}")
    print_header(world_size, op, teams)
    rows = []
    try:
        for nbytes in sizes:
            times: dict[str, list[list[float]]] = {
                team.candidate: [[] for _ in range(world_size)] for team in teams
            }
            for _ in range(rounds):
                for team in teams:
                    for mine, new in zip(
                        times[team.candidate], team.round(op, nbytes), strict=True
                    ):
                        mine += new
            medians = {name: max(map(statistics.median, ranks)) for name, ranks in times.items()}
            rows.append({"op": op, "ranks": world_size, "bytes": nbytes, "median_s": medians})
            print_row(nbytes, medians)
    finally:
        for team in teams:
            team.close()
    return rows


# --- the table -------------------------------------------------------------------------------------------------------


def print_environment(environment: dict) -> None:
    print("  ".join(f"{key}: {value}" for key, value in environment.items()))
    for name, what in CANDIDATES.items():
        print(f"  {name:<11} {what}")


def print_header(world_size: int, op: str, teams: list[Team]) -> None:
    names = [team.candidate for team in teams]
    ratios = [f"{name}/gloo" for name in names if name != "gloo"] if "gloo" in names else []
    print(f"\n{op}, {world_size} ranks; microseconds a call (median), and times as fast as Gloo")
    print(
        "".join([f"{'bytes':>10}", *(f"{n:>12}" for n in names), *(f"{r:>16}" for r in ratios)]),
        flush=True,
    )


def print_row(nbytes: int, medians: dict[str, float]) -> None:
    gloo = medians.get("gloo")
    cells = [f"{human(nbytes):>10}", *(f"{1e6 * value:>12.1f}" for value in medians.values())]
    cells += [
        f"{f'{gloo / value:.2f}x':>16}"
        for name, value in medians.items()
        if gloo and name != "gloo"
    ]
    print("".join(cells), flush=True)


def human(nbytes: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def environment() -> dict:
    from importlib.metadata import version

    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": f"{os.getloadavg()[0]:.1f}",
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--op", choices=OPS, default="all_reduce")
    parser.add_argument(
        "--ranks", default="2,4", help="numbers of ranks, with commas between (2,4)"
    )
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    parser.add_argument(
        "--candidates", default=",".join(CANDIDATES), help="those to run, with commas between"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="turns of each candidate at each size (5)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers here too")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.address)
        return
    candidates = options.candidates.split(",")
    if unknown := set(candidates) - set(CANDIDATES):
        parser.error(
            f"unknown candidates {sorted(unknown)}, expected some of {', '.join(CANDIDATES)}"
        )
    where = environment()
    print_environment(where)
    sizes = [size for size in SIZES if size <= options.max_bytes]
    rows = []
    for world_size in map(int, options.ranks.split(",")):
        rows += bench(world_size, options.op, sizes, candidates, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps({"environment": where, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
