"""The oracle: a schedule executed hop by hop in numpy, and compiled programs evaluated as the engine does.

dtypes: ``fp32``, ``int32`` (wraps around) and ``bf16``, whose values are uint16 bit patterns, added in fp32 and
rounded to the nearest, ties to even, at every hop; a NaN becomes 0x7fc0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.compile import COMBINE
from collectives.dataflow import initial, required
from collectives.group import Group
from collectives.schedule import Schedule, ScheduleError, chunk_bounds

__all__ = ["DTYPES", "Run", "add", "bf16_from_fp32", "evaluate", "interpret"]

DTYPES: dict[str, np.dtype[Any]] = {"fp32": np.dtype(np.float32), "bf16": np.dtype(np.uint16), "int32": np.dtype(np.int32)}


def bf16_from_fp32(values: np.ndarray) -> np.ndarray:
    """bf16 bit patterns of fp32 values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where((bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000), np.uint16(0x7FC0), rounded)


def bf16_to_fp32(bits: np.ndarray) -> np.ndarray:
    """fp32 values of bf16 bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def add(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """One hop's addition."""
    with np.errstate(all="ignore"):
        if dtype == "bf16":
            return bf16_from_fp32(bf16_to_fp32(a) + bf16_to_fp32(b))
        return a + b


@dataclass(frozen=True, eq=False)
class Run:
    """What :func:`interpret` did."""

    outputs: list[np.ndarray | None]
    """By rank: the tensor, or for reduce_scatter and scatter the rank's segment; None where the op gives nothing."""
    bytes_by_pair: Counter[tuple[int, int]]
    """(source, destination) group ranks."""
    bytes_by_link: Counter[int]
    """By the topology's link number; empty without a group."""


def interpret(
    schedule: Schedule,
    inputs: Sequence[np.ndarray],
    dtype: str = "fp32",
    group: Group | None = None,
    counts: np.ndarray | None = None,
) -> Run:
    """Run ``schedule`` on every rank's input, transfer by transfer.

    Inputs: the tensor; for reduce_scatter, all_to_all, and at the root of scatter, ``ranks`` equal segments; for
    all_gather, gather and permute one segment. all_to_allv: ``counts[s, d]`` elements from rank s to rank d, in place
    of equal segments. Raises :class:`ScheduleError` if a transfer finds nothing to send.
    """
    n, item = schedule.ranks, DTYPES[dtype].itemsize
    if counts is None:
        numel = _segment_numel(schedule, inputs)
        bounds = chunk_bounds(schedule, numel)
    else:
        if schedule.op != "all_to_all" or schedule.pieces != 1:
            raise ScheduleError(f"{schedule}: counts are for an all_to_all of whole chunks")
        numel, bounds = 0, np.append(0, np.cumsum(counts))
    held: list[dict[int, np.ndarray]] = [{} for _ in range(n)]
    k = schedule.pieces
    for rank, slot, _ in zip(*(c.tolist() for c in initial(schedule)), strict=True):
        chunk = int(schedule.slot_chunk[slot])
        begin, end = int(bounds[chunk]), int(bounds[chunk + 1])
        shift = 0
        if schedule.op in ("all_gather", "gather", "permute"):
            shift = chunk // k * numel
        elif schedule.op == "all_to_all":
            shift = int(bounds[rank * n * k])
        held[rank][slot] = np.asarray(inputs[rank]).ravel()[begin - shift : end - shift].copy()
    by_pair: Counter[tuple[int, int]] = Counter()
    by_link: Counter[int] = Counter()
    routes: dict[tuple[int, int], list[int]] = {}
    rows = schedule.rows
    columns = [c.tolist() for c in (rows.step, rows.src, rows.dst, rows.src_slot, rows.dst_slot, rows.count)]
    transfers = list(zip(*columns, rows.reduce.tolist(), strict=True))
    at = 0
    while at < len(transfers):
        step = transfers[at][0]
        wire = []
        while at < len(transfers) and transfers[at][0] == step:
            _, src, dst, src_slot, dst_slot, count, reduce = transfers[at]
            for i in range(count):
                if src_slot + i not in held[src]:
                    raise ScheduleError(f"{schedule}: step {step}: rank {src} has nothing in slot {src_slot + i}")
                data = held[src][src_slot + i]
                wire.append((dst, dst_slot + i, data, reduce))
                if src != dst:
                    by_pair[src, dst] += data.size * item
                    if group is not None:
                        if (src, dst) not in routes:
                            routes[src, dst] = group.topology.route(int(group.cores[src]), int(group.cores[dst]))
                        for link in routes[src, dst]:
                            by_link[link] += data.size * item
            at += 1
        for dst, slot, data, reduce in wire:
            held[dst][slot] = add(held[dst][slot], data, dtype) if reduce else data
    return Run(_outputs(schedule, held, dtype), by_pair, by_link)


def evaluate(
    programs: Sequence[Sequence[int]], op: str, inputs: Sequence[np.ndarray], dtype: str = "fp32"
) -> list[np.ndarray]:
    """What the native engine computes from compiled programs: [tensor], or each rank's segment of a reduce_scatter."""
    n = len(inputs)
    if op != "reduce_scatter":
        return [_evaluate_part(programs, [np.asarray(i).ravel() for i in inputs], dtype)]
    k = len(programs) // n
    segments = [np.asarray(i).ravel().reshape(n, -1) for i in inputs]
    return [_evaluate_part(programs[r * k : r * k + k], [s[r] for s in segments], dtype) for r in range(n)]


def _evaluate_part(programs: Sequence[Sequence[int]], inputs: list[np.ndarray], dtype: str) -> np.ndarray:
    numel, parts = len(inputs[0]), len(programs)
    result = np.empty(numel, DTYPES[dtype])
    for i, program in enumerate(programs):
        part = slice(numel * i // parts, numel * (i + 1) // parts)
        stack: list[np.ndarray] = []
        for code in program:
            if code == COMBINE:
                right, left = stack.pop(), stack.pop()
                stack.append(add(left, right, dtype))
            else:
                stack.append(inputs[code][part])
        (result[part],) = stack
    return result


def _segment_numel(schedule: Schedule, inputs: Sequence[np.ndarray]) -> int:
    size = np.asarray(inputs[schedule.root]).size
    if schedule.op in ("reduce_scatter", "scatter", "all_to_all"):
        if size % schedule.ranks:
            raise ScheduleError(f"{schedule}: {size} elements do not divide among {schedule.ranks} ranks")
        return size // schedule.ranks
    return size


def _outputs(schedule: Schedule, held: list[dict[int, np.ndarray]], dtype: str) -> list[np.ndarray | None]:
    parts: list[list[np.ndarray]] = [[] for _ in range(schedule.ranks)]
    rank, chunk, _ = required(schedule)
    for r, slot in zip(rank.tolist(), schedule.home[chunk].tolist(), strict=True):
        if slot not in held[r]:
            raise ScheduleError(f"{schedule}: rank {r} chunk {schedule.slot_chunk[slot]}: never arrives")
        parts[r].append(held[r][slot])
    return [np.concatenate(p).astype(DTYPES[dtype], copy=False) if p else None for p in parts]
