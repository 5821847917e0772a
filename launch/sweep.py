"""What nccom-test computes: the ops, the sizes, the bandwidths, and groups that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.bandwidth import busbw_factor
from collectives.cost import Pricer
from collectives.group import Group
from collectives.planner import Plan, plan
from collectives.schedule import Rows, Schedule, chunk_bounds
from collectives.topology import Cluster

__all__ = ["DTYPES", "OPS", "Op", "Point", "Setting", "point", "sizes"]

DTYPES = {
    "uint8": 1, "int8": 1, "fp8": 1, "uint16": 2, "int16": 2, "fp16": 2, "bf16": 2, "int32": 4, "uint32": 4, "fp32": 4,
}  # fmt: skip
"""nccom-test's types and the bytes of an element."""


@dataclass(frozen=True)
class Op:
    """An operation of nccom-test."""

    name: str
    short: str
    planned_as: str
    """The op of the planner."""
    segments: bool
    """Whether the size is divided among the ranks."""
    paired: bool = False
    """Whether the size is what one rank sends, to one other."""


OPS = (
    Op("all_reduce", "allr", "all_reduce", False),
    Op("all_gather", "allg", "all_gather", True),
    Op("all_gatherv", "allgv", "all_gather", True),
    Op("reduce_scatter", "redsct", "reduce_scatter", True),
    Op("sendrecv", "", "permute", False, paired=True),
    Op("alltoall", "", "all_to_all", True),
    Op("alltoallv", "", "all_to_all", True),
    Op("permute", "", "permute", False, paired=True),
)


@dataclass(frozen=True)
class Setting:
    """One run of nccom-test, but for the size."""

    op: Op
    dtype: str
    cluster: Cluster
    groups: tuple[tuple[int, ...], ...]
    """Global ranks; the op runs in all groups at once, on the same size in each."""
    pairs: tuple[tuple[int, int], ...] = ()
    """permute: (source, destination) ranks."""
    product: str | None = None
    """What ``--cluster`` named, for the ranks that are started."""

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def group_size(self) -> int:
        return max(map(len, self.groups))


def sizes(setting: Setting, smallest: int, largest: int, step: int | None, factor: float | None) -> list[int]:
    """The sizes from ``smallest`` to ``largest`` bytes, each rounded up to whole elements (of each rank, where the
    op divides the data among them)."""
    unit = setting.itemsize * (setting.group_size if setting.op.segments else 1)
    step = step or max((largest - smallest) // 10, 1)
    found, size = [], smallest
    while size <= largest:
        found.append(-(-size // unit) * unit)
        size = max(int(size * factor), size + 1) if factor else size + step
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Point:
    """One size of a run, priced."""

    nbytes: int
    count: int
    time_ns: float
    algbw_Bps: float
    busbw_Bps: float
    algorithm: str
    input_bytes: int
    output_bytes: int
    plans: tuple[Plan, ...]


def point(setting: Setting, nbytes: int) -> Point:
    """Plans and prices one size; raises what :func:`collectives.plan` raises."""
    op, plans = setting.op, []
    for ranks in setting.groups:
        pairs = tuple((ranks.index(a), ranks.index(b)) for a, b in setting.pairs)
        if op.name == "sendrecv":  # as nccl-tests: to the next, from the one before
            pairs = tuple((i, (i + 1) % len(ranks)) for i in range(len(ranks)))
        whole = nbytes * len(ranks) if op.paired else nbytes
        plans.append(plan(op.planned_as, whole, ranks, setting.cluster, pairs=pairs))
    time_ns = plans[0].time_ns if len(plans) == 1 else _together(plans, setting)
    r = setting.group_size
    algbw = nbytes / (time_ns * 1e-9)
    factor = busbw_factor(op.planned_as, r)
    assert factor is not None  # every op of nccom-test has one
    share = nbytes // r
    return Point(
        nbytes=nbytes,
        count=nbytes // setting.itemsize,
        time_ns=time_ns,
        algbw_Bps=algbw,
        busbw_Bps=algbw * factor,
        algorithm=", ".join(dict.fromkeys(p.algorithm for p in plans)),
        input_bytes=share if op.planned_as == "all_gather" else nbytes,
        output_bytes=share if op.planned_as == "reduce_scatter" else nbytes,
        plans=tuple(plans),
    )


def _together(plans: Sequence[Plan], setting: Setting) -> float:
    """Time of groups that run at once: one schedule made of theirs, so that they share links step by step."""
    rows, sizes, ranks, slots = [], [], 0, 0
    for p in plans:
        s = p.schedule
        segments = s.ranks if s.op == "all_to_all" else s.segments
        chunks = np.diff(chunk_bounds(s, p.nbytes // segments))
        rows.append(s.rows.placed(np.arange(s.ranks) + ranks, np.arange(s.slots) + slots))
        sizes.append(chunks[s.slot_chunk])
        ranks, slots = ranks + s.ranks, slots + s.slots
    union = Group(setting.cluster, [r for group in setting.groups for r in group])
    joined = Schedule("all_reduce", "joined", ranks, slots, Rows.join(rows))
    return Pricer(joined, union).price(0, sizes=np.concatenate(sizes)).time_ns
