"""How long the contention replay takes for a Llama's trace: a table, and JSON with ``--json FILE``.

    python benchmarks/replay.py                       # 64 ranks, 32 layers, 2 steps: about 1.5 million records
    python benchmarks/replay.py --ranks 16 --layers 4 --out DIR

The trace is made here, without a run: FSDP over the chips times tensor parallel over the cores of a chip with
sequence parallel, each rank the operators, streams, events and collectives of TorchTitan's Llama 3 8B in bf16. Its
times are those of the online clock, which a replay without contention gives. ``cpu s`` are seconds of this machine's
processor; all other times are simulated.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from collectives.topology import Cluster, load_cluster
from neuron_dist.simulation.replay import Replay, replay
from neuron_dist.simulation.retime import write
from neuron_dist.simulation.trace import (
    FORMAT,
    NOBODY,
    RECORD,
    Group,
    Kind,
    RankTrace,
    file_name,
    read,
)

DIM, HEADS, FFN, KV_DIM, VOCABULARY, SEQUENCE = 4096, 32, 14336, 1024, 128256, 8192
"""Llama 3 8B (torchtitan/models/llama3), one sequence of 8192 tokens for each FSDP rank."""
BF16, FP32 = 15, 6
COMPUTE, GATHER, REDUCE = 0, 1, 2
"""Streams: default, all-gather, reduce-scatter."""
TENSOR, DATA = 0, 1
"""Groups."""
SMALL_FORWARD, SMALL_BACKWARD, SMALL_OPTIMIZER = 64, 110, 100
"""Pointwise operators of a layer in each pass, besides its products."""


class LlamaRank:
    """The records of one rank, in program order; the same on all ranks, whose groups differ."""

    def __init__(self, layers: int, tensor: int, data: int) -> None:
        self.layers, self.tensor, self.data = layers, tensor, data
        self.rows: list[dict[str, int]] = []
        self.names: dict[str, int] = {}
        self.numbers = {TENSOR: 0, DATA: 0}
        self.works = self.events = 0
        self.weights = (2 * DIM * DIM + 2 * DIM * KV_DIM + 3 * DIM * FFN) // tensor
        self.tokens = SEQUENCE // tensor * DIM * 2

    def add(self, kind: Kind, name: str = "", **fields: int) -> None:
        number = self.names.setdefault(name, len(self.names)) if name else 0
        self.rows.append({"kind": int(kind), "name": number, **fields})

    def product(self, rows: int, inner: int, columns: int, times: int = 1) -> None:
        flops = 2 * rows * inner * columns * times
        nbytes = 2 * times * (rows * inner + inner * columns + rows * columns)
        self.add(Kind.KERNEL, "aten::mm", dtype=BF16, stream=COMPUTE, a=flops, b=nbytes)

    def pointwise(self, count: int, nbytes: int, stream: int = COMPUTE, dtype: int = BF16) -> None:
        for _ in range(count):
            self.add(Kind.KERNEL, "aten::mul", dtype=dtype, stream=stream, b=nbytes)

    def collective(self, op: str, group: int, nbytes: int, stream: int, dtype: int = BF16) -> int:
        """Issued; what its completion will say is noted at once."""
        self.works += 1
        self.numbers[group] += 1
        fields = {
            "group": group,
            "a": self.numbers[group],
            "b": nbytes,
            "c": self.works,
            "d": NOBODY,
            "dtype": dtype,
        }
        self.add(Kind.ISSUE, op, stream=stream, e=nbytes // (2 if dtype == BF16 else 4), **fields)
        self.add(
            Kind.COLLECTIVE,
            op,
            stream=100 + group,
            e=nbytes // (2 if dtype == BF16 else 4),
            **fields,
        )
        return self.works

    def wait(self, work: int, stream: int) -> None:
        self.add(Kind.WORK_WAIT, stream=stream, c=work)

    def hand_over(self, source: int, target: int) -> None:
        """``target`` waits for what ``source`` has been given so far."""
        self.events += 1
        self.add(Kind.RECORD, stream=source, a=self.events)
        self.add(Kind.WAIT, stream=target, a=self.events)

    def blocking(self, op: str) -> None:
        """A sequence-parallel collective of the activations."""
        self.wait(self.collective(op, TENSOR, self.tokens * self.tensor, COMPUTE), COMPUTE)

    def unshard(self) -> int:
        self.hand_over(COMPUTE, GATHER)
        self.pointwise(2, 2 * self.weights // self.data * 2, GATHER)
        return self.collective("all_gather", DATA, 2 * self.weights, GATHER)

    def unsharded(self, work: int) -> None:
        self.wait(work, GATHER)
        self.hand_over(GATHER, COMPUTE)
        self.pointwise(2, 4 * self.weights)

    def attention(self) -> None:
        t = self.tensor
        for columns in (DIM, KV_DIM, KV_DIM):
            self.product(SEQUENCE, DIM, columns // t)
        self.product(SEQUENCE, DIM // HEADS, SEQUENCE, 2 * HEADS // t)
        self.product(SEQUENCE, DIM // t, DIM)

    def feed_forward(self) -> None:
        for inner, columns in (
            (DIM, FFN // self.tensor),
            (DIM, FFN // self.tensor),
            (FFN // self.tensor, DIM),
        ):
            self.product(SEQUENCE, inner, columns)

    def layer(self, passes: int, small: int) -> None:
        """One pass over a layer; backward has each product twice."""
        for part in (self.attention, self.feed_forward):
            self.blocking("all_gather")
            for _ in range(passes):
                part()
            self.pointwise(small // 2, 2 * self.tokens)
            self.blocking("reduce_scatter")

    def step(self, number: int) -> None:
        reductions: list[int] = []
        work = self.unshard()
        for layer in range(self.layers):
            ahead = self.unshard() if layer + 1 < self.layers else 0
            self.unsharded(work)
            self.layer(1, SMALL_FORWARD)
            work = ahead
        self.product(SEQUENCE, DIM, VOCABULARY // self.tensor, 3)
        work = self.unshard()
        for layer in range(self.layers):
            ahead = self.unshard() if layer + 1 < self.layers else 0
            self.unsharded(work)
            self.layer(2, SMALL_BACKWARD)
            self.hand_over(COMPUTE, REDUCE)
            self.pointwise(1, 4 * self.weights, REDUCE, FP32)
            reductions.append(
                self.collective("reduce_scatter", DATA, 4 * self.weights, REDUCE, FP32)
            )
            work = ahead
        for reduction in reductions:
            self.wait(reduction, REDUCE)
        self.hand_over(REDUCE, COMPUTE)
        self.wait(self.collective("all_reduce", DATA, 4, COMPUTE, FP32), COMPUTE)
        self.pointwise(
            SMALL_OPTIMIZER * self.layers,
            4 * 12 * self.weights // self.data // SMALL_OPTIMIZER,
            dtype=FP32,
        )
        self.add(Kind.HOST_WAIT, stream=COMPUTE)
        self.add(Kind.STEP, a=number)

    def table(self) -> np.ndarray:
        table = np.zeros(len(self.rows), RECORD)
        for field in RECORD.names or ():
            table[field] = [row.get(field, 0) for row in self.rows]
        return table


def llama(folder: Path, cluster: Cluster, ranks: int, layers: int, steps: int) -> list[RankTrace]:
    """A Llama's traces without times."""
    tensor = cluster.logical_cores_per_chip
    data = ranks // tensor
    program = LlamaRank(layers, tensor, data)
    for step in range(steps):
        program.step(step)
    table, names = program.table(), {number: name for name, number in program.names.items()}
    described = {
        "product": cluster.product, "instances": cluster.instances, "lnc": cluster.lnc, "digest": cluster.digest,
        "name": str(cluster),
    }  # fmt: skip
    traces = []
    for rank in range(ranks):
        header = {
            "format": FORMAT, "rank": rank, "world_size": ranks, "cluster": described, "torch": "", "run": "benchmark",
            "command": "benchmarks/replay.py", "hbm_bytes": cluster.hbm_bytes_per_core,
            "dtypes": {str(BF16): "bfloat16", str(FP32): "float32"},
        }  # fmt: skip
        chip, core = divmod(rank, tensor)
        groups = {
            TENSOR: Group(
                TENSOR,
                f"tensor {chip}",
                "mesh_tp",
                tuple(range(chip * tensor, (chip + 1) * tensor)),
            ),
            DATA: Group(DATA, f"data {core}", "mesh_dp", tuple(range(core, ranks, tensor))),
        }
        streams = {COMPUTE: "default", GATHER: "all_gather", REDUCE: "reduce_scatter"}
        traces.append(
            RankTrace(folder / file_name(rank), header, table.copy(), dict(names), groups, streams)
        )
    return traces


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    parser.add_argument("--out", metavar="DIR", help="keep the trace there")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cluster", default="trn2.48xlarge")
    args = parser.parse_args()
    one = load_cluster(args.cluster)
    cluster = load_cluster(args.cluster, -(-args.ranks // one.cores_per_instance))
    if args.ranks % one.logical_cores_per_chip:
        parser.error(
            f"--ranks {args.ranks} does not fill chips of {one.logical_cores_per_chip} cores"
        )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.out or scratch)
        online, made_s = timed(
            lambda: replay(
                llama(folder, cluster, args.ranks, args.layers, args.steps), contended=False
            )
        )
        for trace in online.traces:
            write(trace, folder)
        traces, read_s = timed(lambda: read(folder))
    again, online_s = timed(lambda: replay(traces, contended=False))
    shared, shared_s = timed(lambda: replay(traces))
    assert all((a.records == b.records).all() for a, b in zip(traces, again.traces, strict=True)), (
        "not reproduced"
    )
    show(shared, online, args, (made_s, read_s, online_s, shared_s))


def show(
    shared: Replay, online: Replay, args: argparse.Namespace, cpu_s: tuple[float, ...]
) -> None:
    records = sum(len(t.records) for t in online.traces)
    outcomes, steps = shared.outcomes, list(zip(online.steps, shared.steps, strict=True))
    slowed = [o.slowdown for o in outcomes if o.time_ns > o.alone_ns]
    result: dict[str, Any] = {
        "cluster": str(shared.cluster),
        "ranks": args.ranks,
        "layers": args.layers,
        "records": records,
        "operations": len(outcomes),
        "slowed": len(slowed),
        "largest_slowdown": max(slowed, default=1.0),
        "cpu_s": dict(
            zip(("made", "read", "without_contention", "with_contention"), cpu_s, strict=True)
        ),
        "peak_memory_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "step_ns": [{"online": a.time_ns, "replayed": b.time_ns} for a, b in steps],
        "hot_link": shared.hot_link,
    }
    print(
        f"{records} records of {args.ranks} ranks, {len(outcomes)} collectives, on {shared.cluster}"
    )
    print(f"\n{'replay':<24}{'cpu s':>10}{'records/s':>12}")
    for name, seconds in (("without contention", cpu_s[2]), ("with contention", cpu_s[3])):
        print(f"{name:<24}{seconds:>10.2f}{records / seconds:>12.0f}")
    print(f"\n{'step':<6}{'online ms':>12}{'replayed ms':>14}{'ratio':>8}")
    for a, b in steps:
        print(
            f"{a.step:<6}{a.time_ns / 1e6:>12.2f}{b.time_ns / 1e6:>14.2f}{b.time_ns / a.time_ns:>8.3f}"
        )
    print(
        f"\n{len(slowed)} collectives slowed, at most {result['largest_slowdown']:.2f} times; hot link: {shared.hot_link}"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
