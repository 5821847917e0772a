"""What a replay is asked for and given: other clusters, other algorithms, runs that were killed, wrong traces."""

from dataclasses import replace

import numpy as np
import pytest

from collectives import load_cluster, plan
from collectives.topology import ClusterError
from neuron_dist.simulation import prices
from neuron_dist.simulation.replay import replay
from neuron_dist.simulation.retime import write
from neuron_dist.simulation.roofline import Roofline
from neuron_dist.simulation.trace import Kind, TraceError, read
from tests.simulation.online import Online
from tests.simulation.scripts import run


def test_another_cluster(tmp_path):
    """Operators by its roofline, collectives planned anew, and its name in the traces."""
    todo = [("kernel", r, 0, 9000, 4) for r in range(5)] + [("call", r, 0, 0, 4) for r in range(5)]
    traces = run(tmp_path, todo)
    other = load_cluster("trn1.32xlarge")
    result = replay(traces, other)
    roofline = Roofline.of(other)
    kernel = result.traces[0].of(Kind.KERNEL)[0]
    assert kernel["end_ns"] - kernel["start_ns"] == roofline.duration_ns(
        int(kernel["a"]), int(kernel["b"]), "float32", int(kernel["flag"])
    )
    outcome = next(o for o in result.outcomes if len(o.ranks) == 5)
    p = plan(outcome.op, outcome.nbytes, range(5), other)
    assert (outcome.algorithm, outcome.alone_ns) == (p.algorithm, int(np.floor(p.time_ns + 0.5)))
    for trace in result.traces:
        said = trace.header["cluster"]
        assert (said["product"], said["digest"], said["lnc"]) == (
            other.product,
            other.digest,
            other.lnc,
        )
        noted = trace.of(Kind.COLLECTIVE)[0]
        assert trace.names[int(noted["name2"])] == p.algorithm
    assert (
        traces[0].header["cluster"]["product"] == "trn2.48xlarge"
    )  # the recorded ones are left as they were


def test_the_algorithm_that_ran_is_priced(tmp_path):
    """One that the environment or a group chose, not the planner's choice; on another cluster the choice."""
    online = Online(tmp_path, 8, [range(8)])
    for rank in range(8):
        online.call(rank, 0, "all_reduce", 64 << 20)
    chosen = plan("all_reduce", 64 << 20, range(8), load_cluster())
    assert chosen.algorithm != "ring"
    traces = online.traces()
    for trace in traces:
        trace.names = {
            n: "ring" if text == chosen.algorithm else text for n, text in trace.names.items()
        }
    forced = plan("all_reduce", 64 << 20, range(8), load_cluster(), algorithm="ring")
    assert [(o.algorithm, o.alone_ns) for o in replay(traces).outcomes] == [
        ("ring", int(np.floor(forced.time_ns + 0.5)))
    ]
    other = load_cluster("trn1.32xlarge")
    assert (
        replay(traces, other).outcomes[0].algorithm
        == plan("all_reduce", 64 << 20, range(8), other).algorithm
    )
    assert replay(traces, other, keep_algorithms=True).outcomes[0].algorithm == "ring"
    for trace in traces:
        trace.names = {n: "mine" if text == "ring" else text for n, text in trace.names.items()}
    result = replay(traces)
    assert result.outcomes[0].algorithm == chosen.algorithm
    assert result.notes == [
        f"all_reduce ran as 'mine', which cannot be used here (it is not registered): priced as {chosen.algorithm}"
    ]


@pytest.mark.parametrize("uneven", [False, True])
def test_ranks_that_differ_in_size(tmp_path, uneven):
    """The dearest account counts; uneven ones are priced as rounded up."""
    online = Online(tmp_path, 2, [[0, 1]])
    sizes = [(1 << 20) + 1, (2 << 20) + 12345]
    for rank in range(2):
        online._issue(rank, 0, "all_to_all", 0, sizes[rank], 1, 2**64 - 1, 1, 2 * uneven)
    outcome = replay(online.traces()).outcomes[0]
    assert outcome.nbytes == sizes[1]
    priced = (
        (2 << 20) + (1 << 17) if uneven else sizes[1]
    )  # a sixteenth of the octave from 2 MiB on
    assert outcome.alone_ns == online.price("all_to_all", priced, [0, 1])[0]


def test_names_that_the_engine_cuts(tmp_path, monkeypatch):
    monkeypatch.setattr(prices, "LONGEST_NAME", 15)  # so that names of our own are too long
    cluster = load_cluster(instances=2)
    online = Online(tmp_path, 128, [range(128)], cluster)
    for rank in range(128):
        online.call(rank, 0, "all_reduce", 256 << 20)
    traces = online.traces()
    name = plan("all_reduce", 256 << 20, range(128), cluster).algorithm
    assert len(name) > 15
    for trace in traces:
        trace.names = {n: text[:15] for n, text in trace.names.items()}
    result = replay(traces)
    assert not result.notes and result.outcomes[0].algorithm == name
    for trace in traces:  # another size, for which it is not the choice
        trace.records = trace.records.copy()
        trace.records["b"] = 1 << 20
    result = replay(traces)
    assert result.outcomes[0].algorithm == "hier:kangaring+mesh"
    assert result.notes == [
        "all_reduce ran as one of hier:kangaring+mesh, hier:kangaring+rdh, hier:kangaring+ring: priced as hier:kangaring+mesh"
    ]


def test_who_waits_for_what(tmp_path):
    """Rank 2 died; rank 0 waits for it, rank 1 for rank 0, and a message is never sent."""
    online = Online(tmp_path, 4, [[0, 2], [0, 1], [0, 1, 2, 3]])
    online.kernel(0)
    online.call(0, 0, "all_reduce", 4096)
    online.writers[0].add(Kind.WORK_WAIT, stream=-1, c=1)
    online.call(0, 1, "broadcast", 4096, root=0)
    online.kernel(0)
    online.call(1, 1, "broadcast", 4096, root=0)
    online.recv(3, 2, 2, 4096)
    result = replay(online.traces())
    assert [(u.rank, u.waits_for, u.because) for u in result.unfinished] == [
        (0, "all_reduce 1 of group pg0", "rank 2 never called it"),
        (1, "broadcast 1 of mesh_1", "rank 0 waits before it"),
        (3, result.unfinished[2].waits_for, "rank 2 never sent it"),
    ]
    assert result.unfinished[2].waits_for.endswith("from rank 2 to rank 3 of group pg2")
    assert result.unfinished[0].left_out == 3
    assert len(result.traces[0].records) == 2  # its first operator, and its first call
    assert (
        "rank 0 waits for all_reduce 1 of group pg0: rank 2 never called it (3 records left out)"
        in str(result.unfinished[0])
    )


def test_ranks_that_wait_for_one_another(tmp_path):
    """Blocking calls in opposite orders: no order of events exists, and it says so instead of hanging."""
    online = Online(tmp_path, 2, [[0, 1], [0, 1]])
    for rank, order in enumerate(((0, 1), (1, 0))):
        for g in order:
            online.call(rank, g, "all_reduce", 4096)
            online.writers[rank].add(Kind.WORK_WAIT, stream=-1, c=online.next_work[rank])
    for contended in (True, False):
        result = replay(online.traces(), contended=contended)
        assert [str(u) for u in result.unfinished] == [
            "rank 0 waits for all_reduce 1 of group pg0: rank 1 waits before it (3 records left out)",
            "rank 1 waits for all_reduce 1 of mesh_1: rank 0 waits before it (3 records left out)",
        ]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"digest": "feedfacefeedface"},
            ClusterError,
            "trn2.48xlarge's YAML has changed since or is another one",
        ),
        (
            {"product": "trn2.49xlarge"},
            ClusterError,
            "unknown product 'trn2.49xlarge'; did you mean 'trn2.48xlarge'?",
        ),
    ],
)
def test_a_recorded_cluster_that_is_not_there(tmp_path, change, error, text):
    traces = run(tmp_path, [])
    for trace in traces:
        trace.header["cluster"] = trace.header["cluster"] | change
    with pytest.raises(error) as raised:
        replay(traces)
    assert text in str(raised.value) and "--cluster names the product or YAML file" in str(
        raised.value
    )
    assert replay(traces, load_cluster()).cluster == load_cluster()


def test_a_cluster_without_a_core_for_each_rank(tmp_path):
    with pytest.raises(
        ClusterError,
        match=r"trn1\.2xlarge \(LNC 1\): there is no core for rank 4, only for 0 to 1; 3 instances",
    ):
        replay(run(tmp_path, []), load_cluster("trn1.2xlarge"))


def test_traces_that_contradict_one_another(tmp_path):
    online = Online(tmp_path, 2, [[0, 1]])
    online.call(0, 0, "all_reduce", 4096)
    online._issue(1, 0, "all_gather", 0, 4096, 1, 2**64 - 1, 1)
    with pytest.raises(
        TraceError,
        match=r"rank_00001.trace: all_gather \(root 0\) is number 1 of group pg0, but rank 0 has all_reduce",
    ):
        replay(online.traces())
    with pytest.raises(TraceError, match="no traces"):
        replay([])


def test_a_retimed_trace_is_written_and_read(tmp_path):
    todo = [("kernel", 0, 0, 9000, 4), ("call", 1, 0, 1, 4), ("send", 2, 0, 1, 1)]
    result = replay(run(tmp_path / "run", todo), load_cluster("trn1.32xlarge"))
    for trace in result.traces:
        write(trace, tmp_path / "new")
    for written, trace in zip(read(tmp_path / "new"), result.traces, strict=True):
        assert (written.records == trace.records).all()
        assert (written.names, written.groups, written.header) == (
            trace.names,
            trace.groups,
            trace.header,
        )
    again = replay(read(tmp_path / "new"))  # its header names the cluster that it was replayed on
    for one, two in zip(again.traces, result.traces, strict=True):
        assert (one.records == two.records).all()


def test_a_faster_core(tmp_path):
    traces = run(tmp_path, [("kernel", 0, 0, 60000, 5)])
    roofline = Roofline.of(load_cluster())
    result = replay(traces, roofline=replace(roofline.faster(2.0), launch_ns=0.0))
    old, new = (t[0].of(Kind.KERNEL)[0] for t in (traces, result.traces))
    assert int(new["end_ns"] - new["start_ns"]) == pytest.approx(
        (int(old["end_ns"] - old["start_ns"]) - 1300) / 2, abs=1
    )
