"""How long tests in ranks take under pytest, and what the plugin costs a run without any.

    python benchmarks/pytest_plugin.py                  # 20 tests of 4 ranks, after the first
    python benchmarks/pytest_plugin.py --ranks 16 --tests 5

A test here does one all_reduce on `neuron`. Times are pytest's own, of set-up, call and teardown together: from before
the fork to the end of the last rank. The first test waits for the process that ranks are forked from, which imports
torch. Start-up is that of a whole pytest process with one empty test, in turns with and without the plugin.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.neuron(ranks={ranks})
@pytest.mark.parametrize("n", range({tests}))
def test_all_reduce(n, rank, world_size, device):
    x = torch.full((16,), float(rank), device=device)
    dist.all_reduce(x)
    assert x[0].item() == sum(range(world_size))
"""


def pytest_run(folder: Path, *args: str) -> float:
    """Seconds of one pytest process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise click.ClickException(done.stdout + done.stderr)
    return time.perf_counter() - start


def processor_seconds() -> float:
    """Of all processes that have ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_ranks(ranks: int, tests: int) -> tuple[list[float], float]:
    """Seconds of each test, and processor seconds of the run."""
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text(TESTS.format(ranks=ranks, tests=tests))
        pytest_run(folder, "--junitxml=it.xml")
        cases = ElementTree.parse(folder / "it.xml").iter("testcase")
        return [float(case.get("time", "nan")) for case in cases], processor_seconds() - before


def start_up(repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of a run without marked tests, without the plugin and with it."""
    without, with_plugin = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text("def test_it(): pass\n")
        for _ in range(repeats):
            without.append(pytest_run(folder, "-p", "no:neuron_dist"))
            with_plugin.append(pytest_run(folder))
    return without, with_plugin


@click.command()
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(1))
@click.option("--tests", default=20, show_default=True, type=click.IntRange(1), help="After the first.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Of the start-up.")
def main(ranks: int, tests: int, repeats: int) -> None:
    """Times of tests in ranks."""
    _, alone = in_ranks(ranks, 1)
    (first, *others), together = in_ranks(ranks, tests + 1)
    click.echo(f"machine: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    click.echo(f"first test of {ranks} ranks: {first:.2f} s")
    click.echo(
        f"{tests} more: median {statistics.median(others):.3f} s, mean {statistics.mean(others):.3f} s, "
        f"least {min(others):.3f} s, most {max(others):.3f} s a test"
    )
    click.echo(f"processor time: {(together - alone) / tests:.3f} s a test, {alone:.1f} s for the first and all before it")
    without, with_plugin = start_up(repeats)
    click.echo(
        f"a run without marks: median {statistics.median(without):.2f} s without the plugin, "
        f"{statistics.median(with_plugin):.2f} s with it"
    )


if __name__ == "__main__":
    main()
