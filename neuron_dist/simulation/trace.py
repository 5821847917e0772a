"""The trace of a run: one file a rank, ``rank_00003.trace``, of 80-byte records that are appended as things happen.

The native core writes a record by storing its first byte last, into a mapped file, so that what had happened is
readable after a ``kill -9``. Times are simulated nanoseconds since the rank began; ranks share one time axis.

Text (names, groups, the header) stands in records of kind ``TEXT``: ``a`` is its length, and the bytes follow in as
many 80-byte slots as they need. What each field means by kind:

=========== ============================================================================================
HEADER      TEXT of flag 0: JSON, see :attr:`RankTrace.header`
NAME        TEXT of flag 1: the name of number ``name`` (operators, collectives, algorithms, memory holders)
GROUP       TEXT of flag 2: JSON ``{"id", "name", "desc", "ranks"}`` of the process group ``group``
STREAM      TEXT of flag 3: what the stream ``stream`` is called
SITE        TEXT of flag 4: JSON of a fidelity report ``{"rule", "site", "message", "count"}``; ``a`` as above
KERNEL      an operator: ``name``, ``dtype``, ``stream``, ``start_ns`` to ``end_ns``, ``flag`` = where bytes move
            (:mod:`neuron_dist.simulation.roofline`), ``a`` = flops, ``b`` = bytes
RECORD      the event ``a`` is recorded on ``stream`` at ``start_ns``
WAIT        ``stream`` waits for the event ``a``; its time is then ``start_ns``
HOST_WAIT   the host waits for ``stream`` (flag 0), or for event ``a`` (flag 1); its time is then ``start_ns``
ISSUE       a collective or message is called on ``stream`` (-1: on the host, for CPU tensors), ready at ``start_ns``:
            ``name`` = op, ``dtype``, ``flag`` = reduction, ``group``, ``a`` = sequence number in the group (send: in
            its channel; recv: 0), ``b`` = bytes of the whole collective as nccom-test counts them (messages: of the
            message), ``c`` = work, ``d`` = root or peer as a group rank (``NOBODY``: none), ``e`` = elements;
            ``flag2`` has bit 0 for CPU tensors, bit 1 for uneven sizes, bit 2 for an eager send (complete without
            its receiver)
COLLECTIVE  how it went: the fields of its ISSUE, ``stream`` = the group's, ``name2`` = algorithm, ``start_ns`` (the
            last arrival) to ``end_ns``; only on ranks that took part
MESSAGE     the same for a send or recv; ``a`` = its number in the channel from sender to receiver, for both
WORK_WAIT   ``stream`` (-1: the host) waits for the work ``c``; its time is then ``start_ns``
            Streams from ``1 << 29`` are a work's own: ``(1 << 29) + c`` carries copies of its results into views,
            which belong to the work (who waits for it after them waits for them too), and ``(1 << 30) + c`` what its
            future called back; each begins with its WORK_WAIT. From ``1 << 20`` on are groups: plus their number
STEP        training step ``a`` ends: ``start_ns`` to ``end_ns``, ``b`` = compute, ``c`` = exposed communication,
            ``d`` = overlapped communication, all in ns, ``e`` = flops, ``allocated`` = its peak
MEMORY      what held memory at the peak of step ``a``: ``name`` had ``b`` bytes of ``allocated``
=========== ============================================================================================

``allocated`` of a KERNEL is the HBM in use when it was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "NOBODY",
    "RECORD",
    "Group",
    "Kind",
    "RankTrace",
    "Text",
    "TraceError",
    "TraceWriter",
    "file_name",
    "names_of",
    "read",
    "read_rank",
]

FORMAT = 1
NOBODY = 2**64 - 1


class Kind(IntEnum):
    """What a record says; 0 is a record that was never written."""

    TEXT = 1
    KERNEL = 2
    RECORD = 3
    WAIT = 4
    HOST_WAIT = 5
    ISSUE = 6
    COLLECTIVE = 7
    MESSAGE = 8
    WORK_WAIT = 9
    STEP = 10
    MEMORY = 11


class Text(IntEnum):
    """``flag`` of a TEXT record."""

    HEADER = 0
    NAME = 1
    GROUP = 2
    STREAM = 3
    SITE = 4


RECORD = np.dtype(
    [
        ("kind", "u1"),
        ("dtype", "u1"),
        ("flag", "u1"),
        ("flag2", "u1"),
        ("name", "<u2"),
        ("name2", "<u2"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("stream", "<i4"),
        ("group", "<i4"),
        ("a", "<u8"),
        ("b", "<u8"),
        ("c", "<u8"),
        ("d", "<u8"),
        ("e", "<u8"),
        ("allocated", "<u8"),
    ]
)
assert RECORD.itemsize == 80


UNNAMED = "undefined"
"""What torch.distributed calls a group that was made without a description."""


class TraceError(ValueError):
    """A trace that is not there or cannot be read; names the file and what was expected."""


@dataclass(frozen=True)
class Group:
    """A process group as one of its ranks saw it."""

    id: int
    """Of this rank only; the same group has other numbers on other ranks."""
    name: str
    desc: str
    """What the program calls it, such as a mesh dimension (``mesh_dp``); may be empty."""
    ranks: tuple[int, ...]
    """Global ranks, in group order."""

    @property
    def label(self) -> str:
        """The name that people read: what the program calls the group, or its own name."""
        return f"group {self.name}" if self.desc in ("", UNNAMED) else self.desc


@dataclass
class RankTrace:
    """What one rank wrote."""

    path: Path
    header: dict[str, Any]
    """``rank``, ``world_size``, ``cluster`` (``product``, ``instances``, ``lnc``, ``digest``, ``name``), ``dtypes``
    (names by number), ``torch``, ``command``, ``hbm_bytes`` (capacity of the core)."""
    records: np.ndarray
    """All but TEXT, in the order in which they were written, of :data:`RECORD`."""
    names: dict[int, str] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    streams: dict[int, str] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return int(self.header["rank"])

    def of(self, *kinds: Kind) -> np.ndarray:
        """The records of these kinds, in order."""
        return self.records[np.isin(self.records["kind"], kinds)]

    @cached_property
    def dtypes(self) -> dict[int, str]:
        """Names by number: ``float32``."""
        return {int(k): str(v) for k, v in self.header["dtypes"].items()}

    def dtype_name(self, number: int) -> str:
        return self.dtypes.get(int(number), "")


def file_name(rank: int) -> str:
    """``rank_00003.trace``."""
    return f"rank_{rank:05d}.trace"


def read(folder: str | Path) -> list[RankTrace]:
    """The traces of all ranks in ``folder``, in rank order; all must be of one run.

    Raises :class:`TraceError` where the folder holds none, a rank is missing, or files do not fit together.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TraceError(
            f"{folder}: no such folder; expected one that NEURON_DIST_TRACE or a recipe's trace: named"
        )
    files = sorted(p for p in folder.iterdir() if re.fullmatch(r"rank_\d+\.trace", p.name))
    if not files:
        raise TraceError(
            f"{folder}: holds no trace (rank_00000.trace and so on); set NEURON_DIST_TRACE={folder} for a run"
        )
    traces = [read_rank(file) for file in files]
    world = int(traces[0].header["world_size"])
    for trace in traces:
        for key in ("world_size", "cluster", "run"):
            if trace.header.get(key) != traces[0].header.get(key):
                raise TraceError(
                    f"{trace.path}: its {key} is {trace.header.get(key)!r}, but {traces[0].path.name} has "
                    f"{traces[0].header.get(key)!r}: the folder mixes two runs"
                )
    missing = sorted(set(range(world)) - {t.rank for t in traces})
    if missing:
        raise TraceError(f"{folder}: lacks {file_name(missing[0])}; the run had {world} ranks")
    return traces


def read_rank(path: str | Path) -> RankTrace:
    """One file, up to the last record that was written. Raises :class:`TraceError`."""
    path = Path(path)
    raw = path.read_bytes()
    table = np.frombuffer(raw[: len(raw) // RECORD.itemsize * RECORD.itemsize], RECORD)
    keep = np.ones(len(table), bool)
    texts: list[tuple[Any, str]] = []
    at = 0
    candidates = np.flatnonzero(table["kind"] == Kind.TEXT)
    for row in map(int, candidates):
        if row < at:
            continue  # inside the bytes of the text before
        slots = -(-int(table[row]["a"]) // RECORD.itemsize)
        begin = (row + 1) * RECORD.itemsize
        texts.append((table[row], raw[begin : begin + int(table[row]["a"])].decode()))
        at = row + 1 + slots
        keep[row:at] = False
    live = keep & (table["kind"] != 0)
    end = int(np.flatnonzero(live)[-1]) + 1 if live.any() else 0
    if not texts or texts[0][0]["flag"] != Text.HEADER:
        raise TraceError(f"{path}: not a trace of neuron-dist (no header)")
    header = json.loads(texts[0][1])
    if header.get("format") != FORMAT:
        raise TraceError(
            f"{path}: format {header.get('format')!r}, expected {FORMAT}: read it with the version that wrote it"
        )
    trace = RankTrace(path, header, table[:end][live[:end]])
    for row, text in texts[1:]:
        if row["flag"] == Text.HEADER:  # again, when the rank has joined its process group
            trace.header = json.loads(text)
        elif row["flag"] == Text.NAME:
            trace.names[int(row["name"])] = text
        elif row["flag"] == Text.GROUP:
            made = json.loads(text)
            trace.groups[int(row["group"])] = Group(
                made["id"], made["name"], made["desc"], tuple(made["ranks"])
            )
        elif row["flag"] == Text.STREAM:
            trace.streams[int(row["stream"])] = text
        elif row["flag"] == Text.SITE:
            trace.sites.append(json.loads(text))
    return trace


class TraceWriter:
    """Writes what the native core writes, for tests and for traces that come from elsewhere."""

    def __init__(self, folder: str | Path, header: dict[str, Any]) -> None:
        """``header`` as :attr:`RankTrace.header`; ``format`` is added."""
        self.path = Path(folder) / file_name(header["rank"])
        self._parts: list[bytes] = []
        self._names: dict[str, int] = {}
        self.text(Text.HEADER, json.dumps({"format": FORMAT, **header}))

    def text(self, flag: Text, text: str, **fields: int) -> None:
        data = text.encode()
        self._add(Kind.TEXT, flag=int(flag), a=len(data), **fields)
        self._parts.append(data + bytes(-len(data) % RECORD.itemsize))

    def name(self, text: str) -> int:
        """The number of a name; writes it the first time."""
        if text not in self._names:
            self._names[text] = len(self._names)
            self.text(Text.NAME, text, name=self._names[text])
        return self._names[text]

    def group(self, id: int, name: str, desc: str, ranks: list[int]) -> None:
        self.text(
            Text.GROUP, json.dumps({"id": id, "name": name, "desc": desc, "ranks": ranks}), group=id
        )

    def add(
        self, kind: Kind, *, name: str | None = None, name2: str | None = None, **fields: int
    ) -> None:
        """One record; names by their text, all other fields by number."""
        for key, text in (("name", name), ("name2", name2)):
            if text is not None:
                fields[key] = self.name(text)
        self._add(kind, **fields)

    def _add(self, kind: Kind, **fields: int) -> None:
        record = np.zeros((), RECORD)
        record["kind"] = kind
        for key, value in fields.items():
            record[key] = value
        self._parts.append(record.tobytes())

    def close(self) -> None:
        """Writes the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"".join(self._parts))

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def names_of(trace: RankTrace, records: np.ndarray, field_name: str = "name") -> Iterator[str]:
    """The names of records, in order."""
    return (trace.names.get(int(n), f"#{n}") for n in records[field_name])
