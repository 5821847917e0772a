"""What belongs together over ranks, whatever each rank calls its groups."""

import numpy as np
import pytest

from neuron_dist.simulation.trace import Kind, TraceError, TraceWriter, read
from neuron_dist.simulation.transfers import operations_of
from tests.simulation.training_runs import DTYPES, Program


def instances(operations):
    """(op, label, number) -> the ranks that took part."""
    found = {}
    for row in operations.rows:
        team = operations.teams[row["team"]]
        name = operations.name(row["op"])
        key = ("message" if row["message"] else name, team.label, team.ranks, int(row["instance"]))
        found.setdefault(key, []).append(int(row["rank"]))
    return found


def test_collectives_and_messages_find_their_parts(traces):
    operations = operations_of(traces)
    for (what, _, ranks, _), took_part in instances(operations).items():
        assert sorted(took_part) == sorted(ranks if what != "message" else (0, 3))
    firsts = operations.rows[operations.rows["first"]]
    assert len(firsts) == len(instances(operations)) == len(np.unique(operations.rows["instance"]))
    sends = firsts[firsts["message"]]
    assert {operations.name(op) for op in sends["op"]} == {"send"}


def test_ready_comes_from_the_issue(traces):
    operations = operations_of(traces)
    rows = operations.rows
    assert np.all(rows["ready_ns"] <= rows["start_ns"]) and np.any(
        rows["ready_ns"] < rows["start_ns"]
    )
    issued = sorted(int(n) for t in traces for n in t.of(Kind.ISSUE)["start_ns"])
    assert sorted(rows["ready_ns"].tolist()) == issued
    assert set(rows["issued_on"].tolist()) == {-1, 0, 1}


def test_replica_groups_are_all_of_the_axis(traces):
    operations = operations_of(traces)
    found = dict(zip([t.label for t in operations.teams], operations.replica_groups(), strict=True))
    assert found["mesh_dp"] == [[0, 2], [1, 3]] and found["mesh_tp"] == [[0, 1], [2, 3]]
    assert found["default_pg"] == [[0, 1, 2, 3]]


def test_two_groups_of_one_name_and_ranks_stay_apart(tmp_path):
    program = Program(tmp_path, 2)
    program.collective("all_reduce", "default_pg", 64)
    program.group("again", [[0, 1]], name="0")
    program.collective("all_reduce", "again", 64)
    operations = operations_of(read(program.close()))
    assert sorted(operations.rows["instance"].tolist()) == [0, 0, 1, 1]


def test_messages_of_both_ways_and_many(tmp_path):
    program = Program(tmp_path, 3)
    for source, target in ((0, 1), (1, 0), (0, 1), (2, 1)):
        program.message(source, target, 128)
    found = instances(operations_of(read(program.close())))
    assert sorted(tuple(sorted(v)) for v in found.values()) == [(0, 1), (0, 1), (0, 1), (1, 2)]


def test_unnamed_groups_go_by_their_number(tmp_path):
    header = {"rank": 0, "world_size": 1, "run": "x", "cluster": {}, "dtypes": DTYPES}
    with TraceWriter(tmp_path, header) as writer:
        writer.group(4, "7", "undefined", [0])
        writer.add(Kind.COLLECTIVE, name="barrier", name2="none", group=4)
    operations = operations_of(read(tmp_path))
    assert operations.teams[0].label == "group 7" and len(operations.rows) == 1


def test_a_group_that_nothing_describes_is_named(tmp_path):
    header = {"rank": 0, "world_size": 1, "run": "x", "cluster": {}, "dtypes": DTYPES}
    with TraceWriter(tmp_path, header) as writer:
        writer.group(4, "7", "mesh_dp", [0])
        writer.add(Kind.COLLECTIVE, name="barrier", name2="none", group=5)
    with pytest.raises(TraceError, match=r"rank_00000.trace: .* group 5, expected one of \[4\]"):
        operations_of(read(tmp_path))
