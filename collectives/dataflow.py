"""What stands in each slot after a schedule has run, as expressions over the ranks' contributions.

The schedule is executed once on symbols. A value is a number: below ``ranks`` the contribution of that rank to
the slot's chunk, else the sum of two earlier values. The proof and the compiler both read this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectives.schedule import REDUCING, Rows, Schedule, ScheduleError

__all__ = ["Dataflow", "expand", "trace"]

DENSE_LIMIT = 1 << 26
"""Cells (rank, slot) up to which all are kept; above, only those that the schedule touches."""


@dataclass(eq=False)
class Dataflow:
    """The result of :func:`trace`."""

    schedule: Schedule
    left: np.ndarray
    right: np.ndarray
    """Operands of the value ``ranks + i``."""
    leaves: np.ndarray
    """Contributions in each value, with repetitions; saturates."""
    required_rank: np.ndarray
    required_chunk: np.ndarray
    required_leaf: np.ndarray
    """What the op demands: this rank ends with this chunk, from this rank; -1 from every rank once."""
    final: np.ndarray
    """The value there, -1 for none."""
    programs: np.ndarray | None = None
    """Filled in by the proof of a reduction, see :func:`collectives.compile.program_table`."""


def trace(schedule: Schedule) -> Dataflow:
    """Run ``schedule`` on symbols.

    Raises :class:`ScheduleError` at a transfer that reads a chunk that is not there, adds to none, lands one
    chunk in another's place, names a rank or slot that does not exist, or writes where another of its step does.
    """
    rows = schedule.rows
    _check_ranges(schedule)
    n = schedule.ranks
    cells = _Cells(schedule)
    state = np.full(cells.size, -1, np.int32)
    rank, slot, leaf = initial(schedule)
    state[cells.of(rank, slot)] = leaf
    lefts: list[np.ndarray] = []
    rights: list[np.ndarray] = []
    next_value = n
    leaves = np.ones(max(2 * n, 1024), np.int64)
    edges = np.flatnonzero(np.diff(rows.step)) + 1
    for begin, end in zip([0, *edges], [*edges, len(rows)], strict=True):
        if begin == end:
            continue
        now = rows.take(slice(begin, end))
        order, round_of, mixed = _rounds(schedule, now)
        src_cell, dst_cell, source_row = cells.of_rows(now)
        values = state[src_cell]
        if values.min() < 0:
            _absent(schedule, now, source_row, int(np.argmin(values)), "sends", from_source=True)
        if mixed:
            _overlap(schedule, now, source_row, dst_cell)
        for turn in range(order):
            if order == 1:
                cell, value, reduce = dst_cell, values, now.reduce[source_row]
            else:
                part = round_of[source_row] == turn
                cell, value, reduce = dst_cell[part], values[part], now.reduce[source_row][part]
            copies = ~reduce
            if copies.any():
                state[cell[copies]] = value[copies]
            if reduce.any():
                into, addend = (cell, value) if reduce.all() else (cell[reduce], value[reduce])
                old = state[into]
                if old.min() < 0:
                    bad = np.flatnonzero(dst_cell == into[int(np.argmin(old))])[0]
                    _absent(schedule, now, source_row, int(bad), "adds to", from_source=False)
                made = np.arange(next_value, next_value + len(into), dtype=np.int32)
                state[into] = made
                lefts.append(old)
                rights.append(addend)
                while next_value + len(into) > len(leaves):
                    leaves = np.concatenate([leaves, np.ones(len(leaves), np.int64)])
                total = np.minimum(leaves[old] + leaves[addend], 1 << 40)
                leaves[next_value : next_value + len(into)] = total
                next_value += len(into)
    rank, chunk, leaf = required(schedule)
    return Dataflow(
        schedule,
        np.concatenate(lefts) if lefts else np.zeros(0, np.int32),
        np.concatenate(rights) if rights else np.zeros(0, np.int32),
        leaves[:next_value],
        rank,
        chunk,
        leaf,
        state[cells.of(rank, schedule.home[chunk])],
    )


def initial(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rank, slot, leaf): who holds what before the first step."""
    n, k, home = schedule.ranks, schedule.pieces, schedule.home
    chunks = np.arange(schedule.chunks)
    everyone = np.arange(n)
    if schedule.op in REDUCING:
        rank, chunk = np.repeat(everyone, len(chunks)), np.tile(chunks, n)
        return rank, home[chunk], rank
    if schedule.op in ("broadcast", "scatter", "send"):
        rank = np.full(len(chunks), schedule.root)
    elif schedule.op == "all_to_all":
        rank = chunks // (n * k)
    else:
        rank = chunks // k
    return rank, home[chunks], rank


def required(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rank, chunk, leaf): who must hold what after the last step; leaf -1 is the sum over all ranks."""
    n, k = schedule.ranks, schedule.pieces
    chunks, everyone = np.arange(schedule.chunks), np.arange(n)
    op = schedule.op
    if op in ("all_reduce", "barrier", "all_gather", "broadcast"):
        rank, chunk = np.repeat(everyone, len(chunks)), np.tile(chunks, n)
    elif op in ("reduce", "gather"):
        rank, chunk = np.full(len(chunks), schedule.root), chunks
    elif op in ("reduce_scatter", "scatter"):
        rank, chunk = chunks // k, chunks
    elif op == "all_to_all":
        rank, chunk = chunks // k % n, chunks
    elif op == "send":
        rank, chunk = np.ones(len(chunks), np.int64), chunks
    else:  # permute
        pairs = np.array(schedule.pairs, np.int64).reshape(-1, 2)
        rank, chunk = np.repeat(pairs[:, 1], k), (pairs[:, :1] * k + np.arange(k)).ravel()
    if op in REDUCING:
        leaf = np.full(len(rank), -1)
    elif op in ("broadcast", "scatter", "send"):
        leaf = np.full(len(rank), schedule.root)
    elif op == "all_to_all":
        leaf = chunk // (n * k)
    else:
        leaf = chunk // k
    return rank, chunk, leaf


class _Cells:
    """Numbers for (rank, slot); only those in use where all would be too many."""

    def __init__(self, schedule: Schedule) -> None:
        self.slots = schedule.slots
        self.size = schedule.ranks * self.slots
        self.used: np.ndarray | None = None
        if self.size > DENSE_LIMIT:
            rows = schedule.rows
            row, offset = expand(rows.count)
            rank, slot, _ = initial(schedule)
            final_rank, chunk, _ = required(schedule)
            keys = [
                rows.src[row].astype(np.int64) * self.slots + rows.src_slot[row] + offset,
                rows.dst[row].astype(np.int64) * self.slots + rows.dst_slot[row] + offset,
                rank.astype(np.int64) * self.slots + slot,
                final_rank.astype(np.int64) * self.slots + schedule.home[chunk],
            ]
            used = np.sort(np.concatenate(keys))  # np.unique hashes, which is slower here
            self.used = used[np.append(True, used[1:] != used[:-1])]
            self.size = len(self.used)

    def of(self, rank: np.ndarray, slot: np.ndarray) -> np.ndarray:
        key = rank.astype(np.int64) * self.slots + slot
        return key if self.used is None else np.searchsorted(self.used, key)

    def of_rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(source cell, destination cell, row) of every slot that the rows move."""
        row, offset = expand(rows.count)
        return (
            self.of(rows.src[row], rows.src_slot[row] + offset),
            self.of(rows.dst[row], rows.dst_slot[row] + offset),
            row,
        )


def expand(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, offset) of each slot of rows with these counts."""
    row = np.repeat(np.arange(len(count)), count)
    if len(row) == len(count):
        return row, np.zeros(len(count), np.int64)
    ends = np.cumsum(count, dtype=np.int64)
    return row, np.arange(len(row)) - (ends - count)[row]


def _check_ranges(schedule: Schedule) -> None:
    rows = schedule.rows
    if not len(rows):
        return
    for name, column, limit in (
        ("src", rows.src, schedule.ranks),
        ("dst", rows.dst, schedule.ranks),
        ("src_slot", rows.src_slot, schedule.slots - rows.count + 1),
        ("dst_slot", rows.dst_slot, schedule.slots - rows.count + 1),
        ("count", rows.count - 1, schedule.slots),
    ):
        bad = (column < 0) | (column >= limit)
        if bad.any():
            at = int(np.argmax(bad))
            raise ScheduleError(f"{schedule}: step {rows.step[at]}: {name} is {getattr(rows, name)[at]}, out of range")
    shifted = rows.src_slot != rows.dst_slot
    if shifted.any():
        part = rows.take(shifted)
        row, offset = expand(part.count)
        a = schedule.slot_chunk[part.src_slot[row] + offset]
        b = schedule.slot_chunk[part.dst_slot[row] + offset]
        if (a != b).any():
            at = int(np.argmax(a != b))
            now = row[at]
            raise ScheduleError(
                f"{schedule}: step {part.step[now]}: rank {part.src[now]} sends chunk {a[at]} into the place of "
                f"chunk {b[at]} on rank {part.dst[now]}"
            )


def _rounds(schedule: Schedule, now: Rows) -> tuple[int, np.ndarray, bool]:
    """(rounds, round of each row, whether ranges may overlap in part): rows that write one place take turns."""
    key = now.dst.astype(np.int64) * schedule.slots + now.dst_slot
    same_count = bool((now.count == now.count[0]).all())
    mixed = not same_count or bool(now.count[0] > 1 and (now.dst_slot % now.count[0]).any())
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.ones(len(key), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    if first.all():
        return 1, np.zeros(0, np.int64), mixed
    starts = np.flatnonzero(first)
    turn = np.empty(len(key), np.int64)
    turn[order] = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
    clash = (turn > 0) & ~now.reduce
    clash[order] |= np.append(~now.reduce[order][:-1] & ~first[1:], False)
    if clash.any():
        _conflict(schedule, now, int(np.argmax(clash)), int(now.dst_slot[int(np.argmax(clash))]))
    return int(turn.max()) + 1, turn, mixed


def _overlap(schedule: Schedule, now: Rows, row: np.ndarray, dst_cell: np.ndarray) -> None:
    """Partly overlapping ranges: refuse them unless they do not meet, or meet as equals."""
    order = np.argsort(dst_cell, kind="stable")
    cells, rows = dst_cell[order], row[order]
    meet = np.flatnonzero(cells[1:] == cells[:-1])
    a, b = rows[meet], rows[meet + 1]
    bad = (now.dst_slot[a] != now.dst_slot[b]) | ~now.reduce[a] | ~now.reduce[b]
    if bad.any():
        at = int(a[int(np.argmax(bad))])
        _conflict(schedule, now, at, int(now.dst_slot[at]))


def _conflict(schedule: Schedule, now: Rows, at: int, slot: int) -> None:
    raise ScheduleError(
        f"{schedule}: step {now.step[at]}: two transfers write chunk {schedule.slot_chunk[slot]} on rank "
        f"{now.dst[at]} (one from rank {now.src[at]})"
    )


def _absent(
    schedule: Schedule, now: Rows, row: np.ndarray, cell: int, verb: str, *, from_source: bool
) -> None:
    at = int(row[cell])
    offset = cell - int(np.searchsorted(row, at))
    slot = int((now.src_slot if from_source else now.dst_slot)[at]) + offset
    who = now.src[at] if from_source else now.dst[at]
    raise ScheduleError(
        f"{schedule}: step {now.step[at]}: the transfer from rank {now.src[at]} to rank {now.dst[at]} {verb} chunk "
        f"{schedule.slot_chunk[slot]}, which rank {who} does not hold"
    )
