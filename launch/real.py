"""nccom-test in earnest: real ranks of this machine measure (``--wall``) and verify the data (``--check``).

``--check`` of more ranks than are started here runs the schedules in numpy, hop by hop, on a small tensor.
The data are whole numbers so small that every order of additions is exact: results must equal to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from collectives.interpret import DTYPES as INTERPRETED
from collectives.interpret import bf16_from_fp32, interpret
from collectives.planner import Plan
from collectives.topology.environment import LNC_VARIABLES, PRODUCT_VARIABLE
from launch import ranks as on_a_rank
from launch.arguments import CHECKS
from launch.sweep import Point, Setting

__all__ = ["Real", "run"]

INTERPRETED_ELEMENTS = 4096
"""About how many elements of a rank the interpreter moves; a schedule does not depend on it."""
TIMEOUT_S = 600.0


@dataclass
class Real:
    """What was found out."""

    wall_us: list[list[float]] | None = None
    """Of each size, each measured operation: the mean over the ranks."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(
    setting: Setting,
    points: Sequence[Point],
    iterations: tuple[int, int, int, int] | None,
    check: str | None,
    seed: int,
    most_ranks: int,
) -> Real:
    """Measure if there are ``iterations`` (rounds, warm-up rounds, and in each the operations and those before
    them), verify if there is a ``check``."""
    used = sum(map(len, setting.groups))
    cannot = ""
    if max(max(g) for g in setting.groups) >= most_ranks:
        cannot = "too many ranks to start here"
    elif (need := _memory(setting, points, check)) > (have := _available()):
        cannot = f"the ranks would need {need / 1e9:.1f} GB of memory, {have / 1e9:.1f} are available"
    if cannot and iterations:
        raise click.UsageError(f"--wall: {cannot}; a smaller -e or -r needs less")
    if cannot:
        return _by_interpreter(setting, points, check or CHECKS[0], seed, cannot)
    job = on_a_rank.Job(
        op=setting.op.name, dtype=setting.dtype, groups=setting.groups, pairs=setting.pairs,
        sizes=[p.nbytes for p in points], iterations=iterations, check=check, seed=seed,
    )  # fmt: skip
    result = Real()
    from neuron_dist.testing import RankError, RanksTimeout

    try:
        reports = _on_ranks(setting, job)
    except (RankError, RanksTimeout) as error:
        lines = str(error).strip().splitlines()
        result.problems.append(": ".join(dict.fromkeys((lines[0], lines[-1]))))
        return result
    result.problems = [p for report in reports for p in report.problems]
    if iterations:
        result.wall_us = np.mean([r.wall_us for r in reports if r.wall_us], axis=0).tolist()
        result.notes.append(f"wall: {used} processes over backend neuron here, not a simulation")
    if check and not result.problems:
        result.notes.append(f"check: passed, {len(points)} size(s) on {used} real ranks over backend neuron, {check} data")
    return result


def _memory(setting: Setting, points: Sequence[Point], check: str | None) -> int:
    """Bytes of all ranks at the largest size: input and output; to verify, also a few copies as 32-bit numbers."""
    used, largest = sum(map(len, setting.groups)), max(points, key=lambda p: p.nbytes)
    verify = 16 * largest.count if check else 0
    return used * (largest.input_bytes + largest.output_bytes + verify)


def _available() -> int:
    with open("/proc/meminfo") as file:
        kib = next(line for line in file if line.startswith("MemAvailable")).split()[1]
    return int(kib) * 1024


def _on_ranks(setting: Setting, job: Any) -> list[Any]:
    from neuron_dist.testing import run_ranks

    ranks = 1 + max(max(g) for g in setting.groups)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    env = {LNC_VARIABLES[0]: str(setting.cluster.lnc)}
    if setting.product:
        env[PRODUCT_VARIABLE] = setting.product
    return run_ranks(ranks, on_a_rank.work, job, device="neuron", env=env, timeout=TIMEOUT_S)


def _by_interpreter(setting: Setting, points: Sequence[Point], check: str, seed: int, why: str) -> Real:
    dtype = setting.dtype if setting.dtype in INTERPRETED else "int32" if "int" in setting.dtype else "fp32"
    result, done = Real(), []
    for plan in {id(p.schedule): p for point in points for p in point.plans}.values():
        done.append(plan.algorithm)
        wrong = _wrong_ranks(plan, dtype, check, seed)
        if wrong:
            result.problems.append(f"{plan.schedule}: wrong data on rank(s) {wrong}")
    if not result.problems:
        names = ", ".join(dict.fromkeys(done))
        result.notes.append(
            f"check: passed, {names} interpreted hop by hop in {dtype}, {check} data ({why})"
        )
    return result


def _wrong_ranks(plan: Plan, dtype: str, check: str, seed: int) -> list[int]:
    schedule, n = plan.schedule, plan.schedule.ranks
    whole = schedule.op in ("all_reduce", "send")
    numel = INTERPRETED_ELEMENTS if whole else -(-INTERPRETED_ELEMENTS // n)
    shape = (n, numel * (n if schedule.op in ("reduce_scatter", "all_to_all") else 1))
    top = 1 if check == "all_ones" else max(1, min(256 // n, 100))
    values = np.random.default_rng(seed).integers(1 if check == "all_ones" else -top, top + 1, shape)
    if check == "all_ones":
        values[:] = 1

    def typed(whole_numbers: np.ndarray) -> np.ndarray:
        return bf16_from_fp32(whole_numbers) if dtype == "bf16" else whole_numbers.astype(INTERPRETED[dtype])

    outputs = interpret(schedule, list(typed(values)), dtype).outputs
    pieces = values.reshape(n, n, -1) if shape[1] != numel else values
    wrong = []
    for rank, output in enumerate(outputs):
        expected: np.ndarray | None
        if schedule.op == "all_reduce":
            expected = values.sum(axis=0)
        elif schedule.op == "reduce_scatter":
            expected = pieces.sum(axis=0)[rank]
        elif schedule.op == "all_gather":
            expected = values.ravel()
        elif schedule.op == "all_to_all":
            expected = pieces[:, rank].ravel()
        else:
            source = next((a for a, b in plan.pairs if b == rank), None)
            expected = None if source is None else values[source]
        if expected is not None and (output is None or not np.array_equal(output, typed(expected))):
            wrong.append(rank)
    return wrong
