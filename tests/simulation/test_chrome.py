"""The Chrome trace keeps the format's rules and every simulated nanosecond."""

import gzip
import itertools
import json
from collections import Counter

import pytest
from jsonschema import Draft202012Validator

from collectives import load_cluster
from neuron_dist.simulation import chrome
from neuron_dist.simulation.analysis import analyse
from neuron_dist.simulation.trace import Kind, read
from tests.simulation.trace_event import SCHEMA, check, nanoseconds
from tests.simulation.training_runs import Program, fsdp_run

CC_OP = {
    "operation", "algorithm", "num_elements", "dtype", "op_id", "stream_id", "stream_index", "trigger_engine",
    "input_size", "output_size", "algorithm_bandwidth", "bus_bandwidth", "trigger_start_ts", "cc_trigger_start_delay",
    "replica_group_id", "replica_group", "duration_ns", "start_ts", "end_ts",
}  # fmt: skip


@pytest.fixture(scope="module")
def document(analysis, tmp_path_factory):
    path = tmp_path_factory.mktemp("chrome") / "trace.json"
    count = chrome.write(path, analysis)
    found = json.loads(path.read_text())
    assert len(found["traceEvents"]) == count
    return found


def test_the_schema_is_one_and_can_fail(document):
    Draft202012Validator.check_schema(SCHEMA)
    for broken in (
        {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": -1, "name": "a", "cat": "b"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "name": "a", "cat": "b"},
        {"ph": "s", "pid": 1, "tid": 1, "ts": 0, "name": "a", "cat": "b"},
        {"ph": "C", "pid": 1, "tid": 1, "ts": 0, "name": "a", "args": {"x": "1"}},
        {"ph": "B", "pid": 1, "tid": 1, "ts": 0, "name": "a"},
    ):
        with pytest.raises(AssertionError):
            check({**document, "traceEvents": [*document["traceEvents"], broken]})
    flows = [e for e in document["traceEvents"] if e["ph"] == "f"]
    without = [e for e in document["traceEvents"] if e is not flows[0]]
    with pytest.raises(AssertionError, match="1 s, 0 f"):
        check({**document, "traceEvents": without})


def test_it_keeps_the_rules(document):
    phases = check(document)
    assert all(phases[p] for p in "XMCstf")


def test_kernels_and_steps_are_the_records(document, traces):
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    for trace in traces:
        for kind, cat in ((Kind.KERNEL, "kernel"), (Kind.STEP, "step")):
            records = trace.of(kind)
            expected = Counter(
                zip(records["start_ns"].tolist(), records["end_ns"].tolist(), strict=True)
            )
            own = [e for e in slices if e["pid"] == trace.rank + 1 and e["cat"] == cat]
            found = Counter((nanoseconds(e["ts"]), nanoseconds(e["ts"] + e["dur"])) for e in own)
            assert found == expected


def test_collectives_carry_neuron_explorers_fields(document):
    ops = [e for e in document["traceEvents"] if e.get("cat") in ("collective", "message")]
    assert all(set(e["args"]) == CC_OP | {"group"} for e in ops)
    gather = next(
        e["args"]
        for e in ops
        if e["name"] == "all_gather" and e["args"]["cc_trigger_start_delay"] >= 0
    )
    assert gather["replica_group"] == "[[0, 2], [1, 3]]" and gather["dtype"] == "bfloat16"
    assert (gather["input_size"], gather["output_size"], gather["num_elements"]) == (
        1 << 19,
        1 << 20,
        1 << 19,
    )
    assert gather["algorithm_bandwidth"] == pytest.approx((1 << 20) / gather["duration_ns"])
    assert gather["bus_bandwidth"] == pytest.approx(gather["algorithm_bandwidth"] / 2)
    for e in ops:
        args = e["args"]
        assert args["end_ts"] - args["start_ts"] == args["duration_ns"] == nanoseconds(e["dur"])
        assert args["start_ts"] - args["trigger_start_ts"] == args["cc_trigger_start_delay"] >= 0
    last = [
        e["args"] for e in ops if e["name"] == "all_reduce" and e["args"]["group"] == "default_pg"
    ]
    assert {a["trigger_engine"] for a in last} == {"host"}


def test_arrows_tie_the_ranks_of_each_collective(document):
    ops = [
        e
        for e in document["traceEvents"]
        if e.get("cat") in ("collective", "message") and e["dur"] > 0
    ]
    arrows = [e for e in document["traceEvents"] if e["ph"] in "stf"]
    assert Counter(e["id"] for e in arrows) == Counter(e["args"]["op_id"] for e in ops)
    assert {(e["id"], e["pid"], e["tid"]) for e in arrows} == {
        (e["args"]["op_id"], e["pid"], e["tid"]) for e in ops
    }


def test_counters_end_where_nothing_runs(document, analysis):
    links = [
        e for e in document["traceEvents"] if e["ph"] == "C" and e["name"].startswith("GB/s on ")
    ]
    assert f"GB/s on {analysis.links.name(analysis.links.hot)}" in {e["name"] for e in links}
    for name in {e["name"] for e in links}:
        series = [e["args"]["GB/s"] for e in links if e["name"] == name]
        assert series[-1] == 0 and max(series) > 0
    usable = analysis.links.topology.link_Bps.max() / 1e9
    assert max(e["args"]["GB/s"] for e in links) < 3 * usable  # groups may share a link
    held = [
        e["args"]["bytes"]
        for e in document["traceEvents"]
        if e["ph"] == "C" and e["name"] == "HBM in use" and e["pid"] == 1
    ]
    assert max(held) == analysis.hbm.peak_bytes


def test_bytes_on_the_hot_link_are_under_its_counter(tmp_path):
    program = Program(tmp_path, 4)
    program.wait(program.collective("all_gather", "default_pg", 1 << 22))
    program.step()
    found = analyse(read(program.close()))
    events = [json.loads(e) for e in chrome.events(found)]
    name = f"GB/s on {found.links.name(found.links.hot)}"
    series = [(nanoseconds(e["ts"]), e["args"]["GB/s"]) for e in events if e["name"] == name]
    area = sum(v * (b - a) for (a, v), (b, _) in itertools.pairwise(series))
    assert area == pytest.approx(found.links.nbytes.max(), rel=1e-3)


def test_overlapping_messages_get_lanes_of_their_own(tmp_path):
    program = Program(tmp_path, 4)
    for target in (1, 2, 3):
        for source in (s for s in range(4) if s != target):
            program.message(source, target, 1 << 20, stream=target % 2)
    program.step()
    path = tmp_path / "trace.json"
    chrome.write(path, analyse(read(program.close())))
    check(json.loads(path.read_text()))


def test_gz_is_the_same(analysis, document, tmp_path):
    chrome.write(tmp_path / "trace.json.gz", analysis)
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == document


@pytest.mark.parametrize(
    ("op", "root", "expected"),
    [
        ("all_reduce", True, (800, 800)), ("all_gather", True, (100, 800)), ("reduce_scatter", True, (800, 100)),
        ("all_to_all", True, (800, 800)), ("gather", True, (100, 800)), ("gather", False, (100, 0)),
        ("scatter", True, (800, 100)), ("scatter", False, (0, 100)), ("reduce", False, (800, 0)),
        ("broadcast", False, (800, 800)), ("send", True, (800, 0)), ("recv", True, (0, 800)),
    ],
)  # fmt: skip
def test_input_and_output_sizes(op, root, expected):
    assert chrome.payload_bytes(op, 800, 8, root) == expected


def test_several_instances(tmp_path):
    folder = fsdp_run(tmp_path, ranks=8, tp=2, steps=2, layers=2, cluster=load_cluster(instances=2))
    path = tmp_path / "trace.json"
    chrome.write(path, analyse(read(folder)))
    check(json.loads(path.read_text()))
