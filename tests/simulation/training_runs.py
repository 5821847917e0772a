"""Programs whose simulated clocks follow the native core's rules, written as traces: what the tests here read.

    program = Program(tmp_path, ranks=4)
    program.group("mesh_tp", [[0, 1], [2, 3]])
    program[0].kernel("aten::mm", flops=10**9, nbytes=10**6)
    works = program.collective("all_reduce", "mesh_tp", nbytes=1 << 20)
    program[0].wait(works[0])
    program.step()
    traces = read(program.close())

:func:`fsdp_run` is a whole training run.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from collectives import load_cluster, plan
from neuron_dist.simulation.roofline import COMPUTE, Roofline
from neuron_dist.simulation.trace import NOBODY, RECORD, Kind, Text, TraceWriter

DTYPES = {6: "float32", 15: "bfloat16", 3: "int32"}
DTYPE = {name: number for number, name in DTYPES.items()}
ITEMSIZE = {"float32": 4, "bfloat16": 2, "int32": 4}


def rounded(ns):
    """As the native clock rounds a price."""
    return math.floor(ns + 0.5)


@dataclass
class Work:
    number: int
    end_ns: int


@dataclass
class Rank:
    """One rank's clocks and its trace file."""

    rank: int
    roofline: Roofline
    writer: TraceWriter
    host_ns: int = 0
    stream_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    groups: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak: dict[str, int] = field(default_factory=dict)
    kernels: list[tuple[int, int]] = field(default_factory=list)
    transfers: list[tuple[int, int]] = field(default_factory=list)
    flops: int = 0
    step_ns: int = 0
    steps: int = 0
    works: int = 0

    @property
    def allocated(self):
        return sum(self.held.values())

    def add(self, kind, **fields):
        self.writer.add(kind, allocated=fields.pop("allocated", self.allocated), **fields)

    def issued(self, stream):
        """When something issued now on a stream may start."""
        self.host_ns += rounded(self.roofline.dispatch_ns)
        return self.host_ns if stream < 0 else max(self.stream_ns[stream], self.host_ns)

    def kernel(self, name, flops=0, nbytes=0, dtype="bfloat16", stream=0, moves=COMPUTE):
        start = self.issued(stream)
        end = start + self.roofline.duration_ns(flops, nbytes, dtype, moves)
        self.add(
            Kind.KERNEL, name=name, dtype=DTYPE[dtype], stream=stream, flag=moves, start_ns=start, end_ns=end,
            a=flops, b=nbytes,
        )  # fmt: skip
        self.stream_ns[stream] = end
        self.kernels.append((start, end))
        self.flops += flops

    def join(self, event, source, stream):
        """``stream`` waits for what ``source`` has been given so far."""
        self.add(Kind.RECORD, stream=source, start_ns=self.stream_ns[source], a=event)
        self.stream_ns[stream] = max(self.stream_ns[stream], self.stream_ns[source])
        self.add(Kind.WAIT, stream=stream, start_ns=self.stream_ns[stream], a=event)

    def wait(self, work, stream=0):
        if stream < 0:
            self.host_ns = at = max(self.host_ns, work.end_ns)
        else:
            self.stream_ns[stream] = at = max(self.stream_ns[stream], work.end_ns)
        self.add(Kind.WORK_WAIT, stream=stream, start_ns=at, c=work.number)

    def synchronize(self, stream=0):
        self.host_ns = max(self.host_ns, self.stream_ns[stream])
        self.add(Kind.HOST_WAIT, stream=stream, start_ns=self.host_ns)

    def hold(self, holder, nbytes):
        """Allocates bytes, or frees them where they are negative."""
        self.held[holder] += nbytes
        if self.allocated > sum(self.peak.values()):
            self.peak = dict(self.held)

    def report(self, rule, site, message, count=1):
        self.writer.text(
            Text.SITE,
            f'{{"rule": "{rule}", "site": "{site}", "message": "{message}", "count": {count}}}',
        )

    def naive_split(self, start, end):
        """(compute, exposed, overlapped) of a span, piece by piece: what the native core adds up."""
        kernels = [(max(a, start), min(b, end)) for a, b in self.kernels if a < end and b > start]
        transfers = [
            (max(a, start), min(b, end)) for a, b in self.transfers if a < end and b > start
        ]
        edges = sorted({edge for pair in kernels + transfers for edge in pair})
        compute = exposed = overlapped = 0
        for a, b in itertools.pairwise(edges):
            computing = any(s <= a and b <= e for s, e in kernels)
            moving = any(s <= a and b <= e for s, e in transfers)
            compute += (b - a) * computing
            overlapped += (b - a) * (computing and moving)
            exposed += (b - a) * (moving and not computing)
        return compute, exposed, overlapped

    def step(self):
        self.steps += 1
        end = max([self.host_ns, *self.stream_ns.values()])
        compute, exposed, overlapped = self.naive_split(self.step_ns, end)
        peak = sum(self.peak.values())
        self.add(
            Kind.STEP, a=self.steps, start_ns=self.step_ns, end_ns=end, b=compute, c=exposed, d=overlapped,
            e=self.flops, allocated=peak,
        )  # fmt: skip
        for holder, nbytes in self.peak.items():
            self.add(Kind.MEMORY, name=holder, a=self.steps, b=nbytes, allocated=peak)
        self.kernels = [k for k in self.kernels if k[1] > end]
        self.transfers = [t for t in self.transfers if t[1] > end]
        self.step_ns, self.flops, self.peak = end, 0, dict(self.held)


class Program:
    """All ranks of a run. Calls are in the order of the program, so a collective finds all ranks ready."""

    def __init__(
        self, folder, ranks, cluster=None, run="test", command=("train.py", "--steps", "3")
    ):
        self.folder, self.cluster = folder, cluster or load_cluster()
        roofline = Roofline.of(self.cluster)
        header = {
            "world_size": ranks,
            "run": run,
            "torch": "2.13.0",
            "command": command,
            "cluster": {
                "product": self.cluster.product,
                "instances": self.cluster.instances,
                "lnc": self.cluster.lnc,
                "digest": self.cluster.digest,
                "name": str(self.cluster),
            },
            "dtypes": DTYPES,
            "hbm_bytes": self.cluster.hbm_bytes_per_core,
        }
        self.ranks = [
            Rank(r, roofline, TraceWriter(folder, {"rank": r, **header})) for r in range(ranks)
        ]
        self.members = {}
        self.free_ns = defaultdict(int)
        self.numbers = defaultdict(int)
        for rank in self.ranks:
            rank.writer.text(Text.STREAM, "default", stream=0)
            rank.writer.text(Text.STREAM, "prefetch", stream=1)
        self.group("default_pg", [list(range(ranks))], name="0")  # as torch does

    def __getitem__(self, rank):
        return self.ranks[rank]

    def group(self, label, members, name=None):
        """Process groups of one label; ids differ from rank to rank, as those of the native core may."""
        self.members[label] = members
        for index, ranks in enumerate(members):
            for r in ranks:
                rank = self.ranks[r]
                rank.groups[label] = 3 + len(rank.groups) * 2 + r % 2
                rank.writer.group(rank.groups[label], name or f"{label}_{index}", label, ranks)

    def collective(self, op, label, nbytes, stream=0, dtype="bfloat16", root=None, algorithm=None):
        """``op`` in every group of this label, on every rank; works by rank."""
        works = {}
        for index, ranks in enumerate(self.members[label]):
            ready = {r: self.ranks[r].issued(stream) for r in ranks}
            start, taken, name = max(self.free_ns[label, index], *ready.values()), 0, "none"
            if len(ranks) > 1:
                priced = plan(op, nbytes, ranks, self.cluster, root=root or 0, algorithm=algorithm)
                taken, name = rounded(priced.time_ns), priced.algorithm
            self.free_ns[label, index] = end = start + taken
            self.numbers[label, index] += 1
            for r in ranks:
                rank = self.ranks[r]
                rank.works += 1
                works[r] = Work(rank.works, end)
                fields = dict(
                    name=op, dtype=DTYPE[dtype], group=rank.groups[label], a=self.numbers[label, index],
                    b=nbytes, c=rank.works, d=NOBODY if root is None else root, e=nbytes // ITEMSIZE[dtype],
                    flag2=int(stream < 0),
                )  # fmt: skip
                rank.add(Kind.ISSUE, stream=stream, start_ns=ready[r], **fields)
                rank.add(
                    Kind.COLLECTIVE, stream=100 + rank.groups[label], name2=name, start_ns=start, end_ns=end, **fields
                )  # fmt: skip
                rank.transfers.append((start, end))
        return works

    def message(self, source, target, nbytes, label="default_pg", stream=0, eager=False):
        """A send and its receive, global ranks; works by rank."""
        ranks = next(g for g in self.members[label] if source in g and target in g)
        channel = (label, source, target)
        ready = {r: self.ranks[r].issued(stream) for r in (source, target)}
        leaves = max(ready[source], self.free_ns[channel])
        cost = rounded(plan("send", nbytes, [source, target], self.cluster).time_ns)
        self.free_ns[channel] = leaves + cost
        start = leaves if eager else max(leaves, ready[target])
        spans = {source: (start, start + cost), target: (start, start + cost)}
        if eager:
            spans[target] = (ready[target], max(ready[target], leaves + cost))
        self.numbers[channel] += 1
        works = {}
        for r, op, peer in ((source, "send", target), (target, "recv", source)):
            rank = self.ranks[r]
            rank.works += 1
            works[r] = Work(rank.works, spans[r][1])
            fields = dict(
                name=op, dtype=DTYPE["bfloat16"], group=rank.groups[label], b=nbytes, c=rank.works,
                d=ranks.index(peer), e=nbytes // 2, flag2=4 * eager,
            )  # fmt: skip
            number = self.numbers[channel]
            rank.add(
                Kind.ISSUE,
                stream=stream,
                start_ns=ready[r],
                a=number if op == "send" else 0,
                **fields,
            )
            rank.add(
                Kind.MESSAGE, stream=100 + rank.groups[label], name2="p2p", a=number, start_ns=spans[r][0],
                end_ns=spans[r][1], **fields,
            )  # fmt: skip
            rank.transfers.append(spans[r])
        return works

    def wait(self, works, stream=0):
        for r, work in works.items():
            self.ranks[r].wait(work, stream)

    def step(self):
        for rank in self.ranks:
            rank.step()

    def close(self):
        for rank in self.ranks:
            rank.writer.close()
        return self.folder


def fsdp_run(
    folder, ranks=4, tp=2, steps=3, layers=4, hidden=1024, tokens=2048, slow=1.25, cluster=None, pipeline=True
):  # fmt: skip
    """FSDP2 over ranks / tp times tensor parallel over tp: parameters are gathered one layer ahead on a stream of
    their own, gradients scattered behind; the last rank computes ``slow`` times as long, and ranks pass a message
    on. Layers are square matrices of ``hidden``, activations [tokens, hidden], all in bfloat16."""
    program = Program(folder, ranks, cluster)
    groups = ranks // tp
    program.group("mesh_dp", [[tp * i + t for i in range(groups)] for t in range(tp)])
    program.group("mesh_tp", [[tp * i + t for t in range(tp)] for i in range(groups)])
    shard, activation = 2 * hidden * hidden // tp, 2 * tokens * hidden
    flops = 2 * tokens * hidden * hidden // tp

    for rank in program.ranks:
        rank.hold("parameters", layers * shard // groups)
        rank.hold("optimizer", 6 * layers * shard // groups)
        if rank.rank < 2:
            rank.report(
                "float64",
                "train.py:41",
                "torch.float64 has no format on TensorE <use float32>",
                3 + rank.rank,
            )

    def gather(event):
        for rank in program.ranks:
            rank.join(event, 0, 1)
            rank.hold("all-gathered parameters", shard)
        return program.collective("all_gather", "mesh_dp", shard, stream=1)

    def compute(name, times):
        for rank in program.ranks:
            part = times * (slow if rank.rank == ranks - 1 else 1)
            rank.kernel(
                name, flops=int(flops * part), nbytes=int((shard + 2 * activation) * part), stream=0
            )
            rank.kernel("aten::silu", flops=0, nbytes=2 * activation)

    for step in range(steps):
        for rank in program.ranks:
            rank.kernel("aten::copy_", nbytes=8 * tokens, dtype="int32", moves=1)
        if step == 0:  # the first step also makes what is made once
            program.wait(program.collective("broadcast", "default_pg", 1 << 20, root=0))
        ahead = gather(10)
        for layer in range(layers):
            program.wait(ahead)
            if layer + 1 < layers:
                ahead = gather(11 + layer)
            compute("aten::mm", 1)
            for rank in program.ranks:
                rank.hold("activations", activation)
            if tp > 1:
                program.wait(program.collective("all_reduce", "mesh_tp", activation))
            for rank in program.ranks:
                rank.hold("all-gathered parameters", -shard)
        if pipeline:
            program.wait(program.message(0, ranks - 1, activation, eager=step % 2 == 1))
        scattered = []
        ahead = gather(30)
        for layer in range(layers):
            program.wait(ahead)
            if layer + 1 < layers:
                ahead = gather(31 + layer)
            compute("aten::mm", 2)
            if tp > 1:
                program.wait(program.collective("all_reduce", "mesh_tp", activation))
            for rank in program.ranks:
                rank.hold("activations", -activation)
                rank.hold("all-gathered parameters", -shard)
                rank.hold("gradients", shard // groups)
                rank.join(50 + layer, 0, 1)
            scattered.append(program.collective("reduce_scatter", "mesh_dp", shard, stream=1))
        for works in scattered:
            program.wait(works)
        for rank in program.ranks:
            rank.kernel(
                "aten::_fused_adamw_",
                flops=0,
                nbytes=16 * layers * shard // groups,
                dtype="float32",
            )
            rank.hold("gradients", -layers * (shard // groups))
        program.wait(program.collective("all_reduce", "default_pg", 4, dtype="float32", stream=-1))
        for rank in program.ranks:
            rank.synchronize()
        program.step()
    return program.close()


def dense_run(folder, ranks=64, pairs=500, steps=2):
    """A run of many records, written in bulk: on each rank ``pairs`` short operators with an all_reduce of the world
    beside each, times 3 records, in ``steps`` steps. Irregular, so that nothing of it can be merged by chance."""
    program = Program(folder, ranks, load_cluster(instances=-(-ranks // 64)))
    rng = np.random.default_rng(0)
    n = pairs * steps
    for rank in program.ranks:
        kernel, op = rank.writer.name("aten::mm"), rank.writer.name("all_reduce")
        algorithm, group = rank.writer.name("ring"), rank.groups["default_pg"]
        starts = np.arange(n) * 1000 + rng.integers(0, 400, n)
        table = np.zeros((n, 3), RECORD)
        table["kind"] = (Kind.KERNEL, Kind.ISSUE, Kind.COLLECTIVE)
        table["name"] = (kernel, op, op)
        table["dtype"] = DTYPE["bfloat16"]
        table["start_ns"] = starts[:, None] + (0, 100, 0)
        table["start_ns"][:, 2] = np.arange(n) * 1000 + 600
        table["end_ns"] = table["start_ns"] + np.stack(
            [rng.integers(50, 500, n), np.zeros(n, int), np.full(n, 300)], 1
        )
        table["a"][:, 0], table["b"][:, 0] = 1000, 1000
        table["a"][:, 1:], table["b"][:, 1:] = np.arange(1, n + 1)[:, None], 4096
        table["c"][:, 1:], table["d"][:, 1:] = np.arange(1, n + 1)[:, None], NOBODY
        table["group"], table["name2"][:, 2] = group, algorithm
        table["allocated"] = rng.integers(0, 1 << 34, (n, 1))
        ends = np.zeros(steps, RECORD)
        ends["kind"], ends["a"], ends["e"] = Kind.STEP, np.arange(1, steps + 1), 1000 * pairs
        ends["start_ns"] = np.arange(steps) * pairs * 1000
        ends["end_ns"], ends["allocated"] = ends["start_ns"] + pairs * 1000, 1 << 34
        rank.writer.close()
        with rank.writer.path.open("ab") as file:
            file.write(table.tobytes() + ends.tobytes())
    return folder
