"""Collectives and messages of all ranks in one table, with what belongs together across ranks.

The records of one collective have its team and sequence number in common, those of a message its channel and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuron_dist.simulation.teams import Team, Teams
from neuron_dist.simulation.trace import Kind, RankTrace, TraceError

__all__ = ["OPERATION", "Operations", "operations_of"]

OPERATION = np.dtype(
    [
        ("rank", "<i4"),
        ("team", "<i4"),
        ("op", "<i4"),
        ("algorithm", "<i4"),
        ("dtype", "<i4"),
        ("instance", "<i8"),
        ("first", "?"),
        ("message", "?"),
        ("flag2", "u1"),
        ("issued_on", "<i4"),
        ("group", "<i4"),
        ("number", "<i8"),
        ("nbytes", "<i8"),
        ("elements", "<i8"),
        ("root", "<i8"),
        ("ready_ns", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
    ]
)
"""One rank's part in one operation. ``instance``: the same for all that belongs together; ``first``: the part that
stands for it (of a message the sender's); ``issued_on``: the stream of the call, -1 for the host; ``group``: the
rank's own number; ``number``: in the group or channel; ``root``: a group rank, or the other side; -1 for none."""


@dataclass(frozen=True, eq=False)
class Operations:
    """What all ranks did together."""

    rows: np.ndarray
    """Of :data:`OPERATION`, rank by rank, each in the order of its records."""
    teams: list[Team]
    names: list[str]
    """What ``op``, ``algorithm`` and ``dtype`` number."""

    def name(self, number: int) -> str:
        return self.names[number]

    def replica_groups(self) -> list[list[list[int]]]:
        """For each team the ranks of all teams of its label, as Neuron's ``replica_group`` lists them."""
        found: dict[tuple[str, int], list[list[int]]] = {}
        for team in self.teams:
            groups = found.setdefault((team.label, len(team.ranks)), [])
            if list(team.ranks) not in groups:
                groups.append(list(team.ranks))
        for groups in found.values():
            groups.sort()
        return [found[team.label, len(team.ranks)] for team in self.teams]


def operations_of(traces: Sequence[RankTrace]) -> Operations:
    """All COLLECTIVE and MESSAGE records of a run, each with when its rank was ready (from its ISSUE)."""
    teams = Teams()
    names: dict[str, int] = {}
    parts = [_of_rank(trace, teams, names) for trace in traces]
    rows = np.concatenate(parts) if parts else np.zeros(0, OPERATION)
    _number(rows, teams.known, names.get("send", -1))
    return Operations(rows, teams.known, list(names))


def _of_rank(trace: RankTrace, teams: Teams, names: dict[str, int]) -> np.ndarray:
    issues, done = trace.of(Kind.ISSUE), trace.of(Kind.COLLECTIVE, Kind.MESSAGE)
    rows = np.zeros(len(done), OPERATION)
    team_of = {number: team.number for number, team in teams.of(trace).items()}
    global_name = {n: names.setdefault(text, len(names)) for n, text in trace.names.items()}
    global_type = {n: names.setdefault(text, len(names)) for n, text in trace.dtypes.items()}
    rows["rank"] = trace.rank
    unknown = np.setdiff1d(done["group"], list(team_of))
    if len(unknown):
        raise TraceError(
            f"{trace.path}: a record is of group {unknown[0]}, expected one of {sorted(team_of)}, "
            "the groups that it describes"
        )
    rows["team"] = _mapped(done["group"], team_of)
    rows["op"] = _mapped(done["name"], global_name)
    rows["algorithm"] = _mapped(done["name2"], global_name)
    rows["dtype"] = _mapped(done["dtype"], global_type)
    rows["message"] = done["kind"] == Kind.MESSAGE
    for ours, theirs in (
        ("flag2", "flag2"), ("group", "group"), ("number", "a"), ("nbytes", "b"), ("root", "d"), ("elements", "e"),
        ("start_ns", "start_ns"), ("end_ns", "end_ns"),
    ):  # fmt: skip
        rows[ours] = done[theirs].astype(rows[ours].dtype)
    at = _match(_issue_keys(done, trace), _issue_keys(issues, trace))
    found = at >= 0
    rows["ready_ns"] = rows["start_ns"]
    rows["ready_ns"][found] = issues["start_ns"][at[found]]
    rows["issued_on"][found] = issues["stream"][at[found]]
    return rows


def _mapped(numbers: np.ndarray, table: dict[int, int]) -> np.ndarray:
    """``table[number]`` of each, -1 where it is not in there."""
    values, inverse = np.unique(numbers, return_inverse=True)
    return np.array([table.get(int(v), -1) for v in values], np.int64)[inverse]


def _issue_keys(records: np.ndarray, trace: RankTrace) -> np.ndarray:
    """[records, 4] what an ISSUE and its operation have in common. A receive has no number when it is issued, and
    may not know its sender, so messages go by their work."""
    message = np.isin(records["name"], [n for n, t in trace.names.items() if t in ("send", "recv")])
    value = np.where(message, records["c"], records["a"])
    columns = (records["group"], records["name"], message, value)
    return np.stack([c.astype(np.int64) for c in columns], axis=1)


def _match(wanted: np.ndarray, given: np.ndarray) -> np.ndarray:
    """For each row of ``wanted`` the index of the same row in ``given``, the n-th for the n-th; -1 if there is none."""
    both = np.concatenate([wanted, given])
    if not len(both):
        return np.zeros(0, np.int64)
    ids = _ids(list(both.T))
    keys = [_numbered(ids[: len(wanted)], len(both)), _numbered(ids[len(wanted) :], len(both))]
    order = np.argsort(keys[1])
    at = np.searchsorted(keys[1][order], keys[0])
    at = order[np.minimum(at, len(order) - 1)] if len(order) else np.full(len(wanted), -1)
    return np.where((at >= 0) & (keys[1][at] == keys[0]), at, -1) if len(order) else at


def _numbered(ids: np.ndarray, most: int) -> np.ndarray:
    """Ids made unique: the n-th of an id gets n in its lower digits."""
    order = np.argsort(ids, kind="stable")
    ranked = ids[order]
    first = np.searchsorted(ranked, ranked, side="left")
    nth = np.empty(len(ids), np.int64)
    nth[order] = np.arange(len(ids)) - first
    return ids.astype(np.int64) * most + nth


def _ids(columns: list[np.ndarray]) -> np.ndarray:
    """A number for each row, the same for equal rows."""
    order = np.lexsort(columns)
    ids = np.zeros(len(order), np.int64)
    if len(order):
        moved = np.zeros(len(order) - 1, bool)
        for column in columns:
            moved |= np.diff(column[order]) != 0
        ids[order[1:]] = np.cumsum(moved)
    return ids


def _number(rows: np.ndarray, teams: list[Team], send: int) -> None:
    """Fills ``instance`` and ``first``; ``send`` is the number of that op's name."""
    own = np.zeros(len(rows), np.int64)
    for index, team in enumerate(teams):
        here = np.flatnonzero(rows["team"] == index)
        places = np.full(max(team.ranks) + 1, -1, np.int64)
        places[list(team.ranks)] = np.arange(len(team.ranks))
        own[here] = places[rows["rank"][here]]
    message = rows["message"]
    sends = message & (rows["op"] == send)
    source = np.where(sends, own, rows["root"]) * message
    target = np.where(sends, rows["root"], own) * message
    columns = [
        rows["number"],
        target,
        source,
        message.astype(np.int64),
        rows["team"].astype(np.int64),
    ]
    rows["instance"] = _ids(columns)
    order = np.lexsort((rows["rank"], message & ~sends, rows["instance"]))
    rows["first"][order] = np.diff(rows["instance"][order], prepend=-1) != 0
