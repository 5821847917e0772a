"""A run as a Chrome trace, for ui.perfetto.dev and chrome://tracing: ranks, streams, collectives, HBM, links.

Processes are ranks (pid = rank + 1, as pid 0 is the idle process to Perfetto), threads are streams and what a group
or channel carries. Arrows tie the parts of one collective or message together. Times are simulated: ``ts`` and
``dur`` in microseconds with three decimals, so to the nanosecond. Events are written one by one: a trace may hold
millions. Collectives carry the fields of Neuron Explorer's CcOp records; bandwidths in GB/s, ``*_ts`` and
``duration_ns`` in ns.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from collectives.bandwidth import busbw_factor
from neuron_dist.simulation.analysis import Analysis
from neuron_dist.simulation.figures import Traffic
from neuron_dist.simulation.hbm import hbm_series
from neuron_dist.simulation.links import known, traffic_bytes
from neuron_dist.simulation.rank_clock import COPY_BACK_STREAM
from neuron_dist.simulation.run_header import command_of
from neuron_dist.simulation.trace import Kind, RankTrace
from neuron_dist.simulation.transfers import Operations

__all__ = ["events", "payload_bytes", "write"]

STEPS, STREAMS, WORKS, TEAMS = 1, 10, 100_000, 200_000
"""Thread numbers: the steps; streams, the streams that works have to themselves, and groups from here on."""
LANES = 8
"""Thread numbers of one group's messages in one direction: channels whose messages overlap are drawn side by side."""
HOTTEST = 8
"""Links that get a counter."""


def write(path: str | Path, analysis: Analysis) -> int:
    """Writes the trace, compressed if the name ends in ``.gz``; the number of its events."""
    path, count = Path(path), 0
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        count = _stream(file, analysis)
    return count


def _stream(file: IO[str], analysis: Analysis) -> int:
    about = {
        "cluster": str(analysis.cluster),
        "ranks": analysis.figures.world_size,
        "time": "simulated, in microseconds",
        "command": command_of(analysis.traces),
    }
    file.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[')
    count = 0
    for event in events(analysis):
        file.write(",\n" if count else "\n")
        file.write(event)
        count += 1
    file.write("\n]}\n")
    return count


def events(analysis: Analysis) -> Iterator[str]:
    """The events as JSON texts."""
    for trace in analysis.traces:
        yield from _metadata(trace)
        yield from _steps(analysis, trace)
        yield from _kernels(trace)
        yield from _memory(trace)
    yield from _operations(analysis)
    yield from _links(analysis)


def payload_bytes(op: str, nbytes: int, size: int, at_root: bool) -> tuple[int, int]:
    """(input, output) bytes of one rank in a group of ``size``, from the bytes of the whole collective as nccom-test
    counts them."""
    share = nbytes // size
    return {
        "all_gather": (share, nbytes),
        "reduce_scatter": (nbytes, share),
        "gather": (share, nbytes if at_root else 0),
        "scatter": (nbytes if at_root else 0, share),
        "reduce": (nbytes, nbytes if at_root else 0),
        "send": (nbytes, 0),
        "recv": (0, nbytes),
    }.get(op, (nbytes, nbytes))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _slice(pid: int, tid: int, start: int, end: int, name: str, kind: str, args: str = "{}") -> str:
    """A complete event; ``name`` and ``args`` are JSON already."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{_us(start)},"dur":{_us(end - start)},'
        f'"name":{name},"cat":"{kind}","args":{args}}}'
    )


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"ts":0,"name":"{what}","args":{json.dumps(args)}}}'


def _thread(pid: int, tid: int, name: str) -> Iterator[str]:
    yield _named("thread_name", pid, tid, name=name)
    yield _named("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(trace: RankTrace) -> Iterator[str]:
    pid = trace.rank + 1
    yield _named("process_name", pid, STEPS, name=f"rank {trace.rank}")
    yield _named("process_sort_index", pid, STEPS, sort_index=trace.rank)
    yield from _thread(pid, STEPS, "steps")
    for tid in np.unique(_kernel_threads(trace.of(Kind.KERNEL))).tolist():
        name = trace.streams.get(tid - STREAMS, "")
        shown = f"stream {tid - STREAMS}{f' ({name})' if name else ''}"
        yield from _thread(pid, tid, shown if tid < WORKS else f"works' own streams {tid - WORKS}")


def _kernel_threads(kernels: np.ndarray) -> np.ndarray:
    """The thread of each operator: its stream, or a lane for those on streams of one work alone."""
    tids = STREAMS + kernels["stream"].astype(np.int64)
    own = np.flatnonzero(kernels["stream"] >= COPY_BACK_STREAM)
    if len(own):
        order = own[np.argsort(kernels["start_ns"][own], kind="stable")]
        spans = zip(
            kernels["start_ns"][order].tolist(), kernels["end_ns"][order].tolist(), strict=True
        )
        ends: list[int] = []
        tids[order] = [WORKS + min(_lane(ends, *span), TEAMS - WORKS - 1) for span in spans]
    return tids


def _lane(ends: list[int], start: int, end: int) -> int:
    """The first of some lanes, which are taken until ``ends``, that is free at ``start``; a new one if none is."""
    lane = next((n for n, free in enumerate(ends) if free <= start), len(ends))
    ends[lane : lane + 1] = [end]
    return lane


def _steps(analysis: Analysis, trace: RankTrace) -> Iterator[str]:
    for step in analysis.figures.ranks:
        if step.rank == trace.rank:
            args = {
                "compute_ns": step.compute_ns,
                "exposed_communication_ns": step.exposed_ns,
                "overlapped_communication_ns": step.overlapped_ns,
                "idle_ns": step.idle_ns,
                "flops": step.flops,
                "hbm_peak_bytes": step.peak_bytes,
            }
            name = "run" if step.step < 0 else f"step {step.step}"
            yield _slice(
                trace.rank + 1,
                STEPS,
                step.start_ns,
                step.end_ns,
                f'"{name}"',
                "step",
                json.dumps(args),
            )


def _kernels(trace: RankTrace) -> Iterator[str]:
    kernels = trace.of(Kind.KERNEL)
    names = {n: json.dumps(text) for n, text in trace.names.items()}
    dtypes = {n: json.dumps(text) for n, text in trace.dtypes.items()}
    columns = [kernels[c].tolist() for c in ("name", "dtype", "start_ns", "end_ns", "a", "b")]
    tids, pid = _kernel_threads(kernels).tolist(), trace.rank + 1
    for tid, name, dtype, start, end, flops, nbytes in zip(tids, *columns, strict=True):
        args = f'{{"flops":{flops},"bytes":{nbytes},"dtype":{dtypes.get(dtype, dtype)}}}'
        shown = names.get(name) or f'"#{name}"'
        yield _slice(pid, tid, start, end, shown, "kernel", args)


def _memory(trace: RankTrace) -> Iterator[str]:
    times, allocated = hbm_series(trace)
    for ns, nbytes in zip(times.tolist(), allocated.tolist(), strict=True):
        yield (
            f'{{"ph":"C","pid":{trace.rank + 1},"tid":{STEPS},"ts":{_us(ns)},"name":"HBM in use",'
            f'"args":{{"bytes":{nbytes}}}}}'
        )


def _operations(analysis: Analysis) -> Iterator[str]:
    """Collectives and messages with their CcOp fields, and the arrows between their parts."""
    operations = analysis.operations
    rows = operations.rows
    tids = _threads(operations)
    seen: set[tuple[int, int]] = set()
    groups = [str(g) for g in operations.replica_groups()]
    instances = rows["instance"]
    count = int(instances.max(initial=-1)) + 1
    parts = np.bincount(instances, minlength=count)
    shortest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(shortest, instances, rows["end_ns"] - rows["start_ns"])
    tied = (parts > 1) & (shortest > 0)  # an arrow needs slices that take time
    order = np.lexsort((rows["rank"], ~rows["first"], instances))
    columns = {name: rows[name][order].tolist() for name in rows.dtype.names or ()}
    at = begun = 0
    for index in range(len(order)):
        row = {name: column[index] for name, column in columns.items()}
        tid = int(tids[order[index]])
        pid = row["rank"] + 1
        if (pid, tid) not in seen:
            seen.add((pid, tid))
            yield from _thread(pid, tid, _lane_name(operations, row, tid))
        name, args = _cc_op(operations, row, groups[row["team"]])
        kind = "message" if row["message"] else "collective"
        yield _slice(pid, tid, row["start_ns"], row["end_ns"], name, kind, args)
        at = 0 if row["first"] else at + 1
        begun = begun if at else row["start_ns"]
        if tied[row["instance"]]:
            phase = "s" if not at else "f" if at + 1 == parts[row["instance"]] else "t"
            yield _arrow(
                phase,
                pid,
                tid,
                max(row["start_ns"], min(begun, row["end_ns"] - 1)),
                row["instance"],
            )


def _arrow(phase: str, pid: int, tid: int, ts: int, number: int) -> str:
    """One end or station of the arrow through an operation's parts, in the slice that encloses ``ts``."""
    binding = ',"bp":"e"' if phase == "f" else ""
    return f'{{"ph":"{phase}","pid":{pid},"tid":{tid},"ts":{_us(ts)},"id":{number},"name":"together","cat":"flow"{binding}}}'


def _threads(operations: Operations) -> np.ndarray:
    """The thread of each part: one a group; for messages as many as overlap, up to :data:`LANES` each way."""
    rows = operations.rows
    per_team = 1 + 2 * LANES
    tids = TEAMS + rows["team"].astype(np.int64) * per_team
    sends = rows["message"] & np.isin(
        rows["op"], [i for i, n in enumerate(operations.names) if n == "send"]
    )
    tids += rows["message"] * np.where(sends, 1, 1 + LANES)
    ends: dict[tuple[int, int], list[int]] = {}
    order = np.lexsort((rows["start_ns"], rows["rank"]))
    for i in order[rows["message"][order]].tolist():
        lanes = ends.setdefault((int(rows["rank"][i]), int(tids[i])), [])
        lane = _lane(lanes, int(rows["start_ns"][i]), int(rows["end_ns"][i]))
        tids[i] += min(lane, LANES - 1)
    return tids


def _lane_name(operations: Operations, row: dict[str, Any], tid: int) -> str:
    label = operations.teams[row["team"]].label
    if not row["message"]:
        return f"{label} collectives"
    lane = (tid - TEAMS) % (1 + 2 * LANES) - 1
    return f"{label} {('sends', 'receives')[lane // LANES]} {lane % LANES}"


def _cc_op(operations: Operations, row: dict[str, Any], groups: str) -> tuple[str, str]:
    """(name, args) of one part, both JSON."""
    team, op = operations.teams[row["team"]], operations.names[row["op"]]
    size = len(team.ranks)
    at_root = row["root"] < 0 or team.ranks[row["root"]] == row["rank"]
    read, written = payload_bytes(op, row["nbytes"], size, at_root)
    ns = row["end_ns"] - row["start_ns"]
    algbw = max(read, written) / ns if ns else None
    factor = busbw_factor("send" if row["message"] else op, size)
    stream = row["issued_on"]
    args = {
        "operation": op,
        "algorithm": operations.names[row["algorithm"]] if row["algorithm"] >= 0 else "",
        "num_elements": row["elements"],
        "dtype": operations.names[row["dtype"]] if row["dtype"] >= 0 else "",
        "op_id": row["instance"],
        "stream_id": row["group"],
        "stream_index": row["number"],
        "trigger_engine": "host" if stream < 0 else f"stream {stream}",
        "input_size": read,
        "output_size": written,
        "algorithm_bandwidth": algbw,
        "bus_bandwidth": None if algbw is None or factor is None else algbw * factor,
        "trigger_start_ts": row["ready_ns"],
        "cc_trigger_start_delay": row["start_ns"] - row["ready_ns"],
        "replica_group_id": row["team"],
        "replica_group": groups,
        "duration_ns": ns,
        "start_ts": row["start_ns"],
        "end_ts": row["end_ns"],
        "group": team.label,
    }
    return json.dumps(op), json.dumps(args)


def _links(analysis: Analysis) -> Iterator[str]:
    """Counters of the hottest links: what all operations that are under way put on them, in GB/s."""
    hottest = analysis.links.busiest(HOTTEST)
    if not hottest:
        return
    pid = analysis.figures.world_size + 1
    yield _named("process_name", pid, STEPS, name=f"links of {analysis.cluster}")
    yield _named("process_sort_index", pid, STEPS, sort_index=analysis.figures.world_size)
    operations = analysis.operations
    parts = operations.rows[
        operations.rows["first"] & (operations.rows["end_ns"] > operations.rows["start_ns"])
    ]
    rates = _rates(analysis, parts, hottest)
    times = np.concatenate([parts["start_ns"], parts["end_ns"]])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([rates, -rates])[order], axis=0)
    times = times[order]
    settled = np.append(np.diff(times) > 0, True) if len(times) else np.zeros(0, bool)
    for link, series in zip(hottest, running[settled].T, strict=True):
        name, moved = json.dumps(f"GB/s on {analysis.links.name(link)}"), np.round(series, 3) + 0.0
        changed = np.diff(moved, prepend=-1.0) != 0
        for ns, value in zip(
            times[settled][changed].tolist(), moved[changed].tolist(), strict=True
        ):
            yield (
                f'{{"ph":"C","pid":{pid},"tid":{STEPS},"ts":{_us(ns)},"name":{name},"args":{{"GB/s":{max(value, 0.0)}}}}}'
            )


def _rates(analysis: Analysis, parts: np.ndarray, links: Sequence[int]) -> np.ndarray:
    """[operations, links] bytes per ns while each runs."""
    operations = analysis.operations
    rates = np.zeros((len(parts), len(links)))
    shares: dict[tuple, np.ndarray] = {}
    columns = [
        parts[c].tolist() for c in ("team", "op", "algorithm", "message", "rank", "root", "nbytes")
    ]
    spans = (parts["end_ns"] - parts["start_ns"]).tolist()
    for i, (team, op, algorithm, message, rank, root, nbytes) in enumerate(
        zip(*columns, strict=True)
    ):
        key = (team, op, algorithm, rank if message else -1, root)
        if key not in shares:
            row = _as_traffic(operations, team, op, algorithm, message, rank, root)
            used = traffic_bytes(row, analysis.cluster) if known(row) else np.zeros(max(links) + 1)
            shares[key] = used[list(links)] / row.nbytes
        rates[i] = shares[key] * nbytes / spans[i]
    return rates


def _as_traffic(
    operations: Operations, team: int, op: int, algorithm: int, message: bool, rank: int, root: int
) -> Traffic:
    """One operation of a size that divides well, whose bytes on the links stand for those of every size."""
    ranks, name = operations.teams[team].ranks, operations.names[op]
    if message:
        ranks, name, root = (
            (rank, ranks[root]) if name == "send" else (ranks[root], rank),
            "send",
            0,
        )
    return Traffic(ranks, "", name, operations.names[algorithm], max(root, 0), 1, 1 << 30, 0)
