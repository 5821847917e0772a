"""Memory history and snapshots, read with torch's own visualizer module."""

import gc
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.cuda import _memory_viz

from neuron_dist import _C

MiB = 1 << 20
D = "neuron"
memory = torch.neuron.memory


def empty(bytes_):
    return torch.empty(bytes_, dtype=torch.uint8, device=D)


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    torch.neuron.empty_cache()
    _C._clear_memory_history()
    yield
    memory._record_memory_history(enabled=None, clear_history=True)


def events(action=None):
    trace = memory._snapshot()["device_traces"][0]
    return [e for e in trace if action is None or e["action"] == action]


def used_blocks(snapshot):
    return [
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]


def train_a_little():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(D)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 64, device=D)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_torch_reads_a_snapshot_of_training(tmp_path):
    before = memory._snapshot()
    memory._record_memory_history(stacks="python")
    held = train_a_little(), empty(4 * MiB)  # a segment of its own, whatever is cached
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    same = str  # stands for the flame graph's script, which torch would download
    flame = _memory_viz.memory(snapshot, format_flamegraph=same)
    assert "train_a_little" in flame and "active_allocated" in flame
    assert "train_a_little" in _memory_viz.segments(snapshot, format_flamegraph=same)
    assert "only_after" in _memory_viz.compare(
        before["segments"], snapshot["segments"], format_flamegraph=same
    )
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    assert "segments: " in _memory_viz.segsum(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "MemoryViz.js" in plot(snapshot)
    assert "MemoryViz.js" in _memory_viz.trace_plot(snapshot, filter_freed=True)
    del held


@pytest.mark.parametrize("command", ["trace", "stats", "trace_plot", "segment_plot"])
def test_torchs_command_line_opens_a_dump(tmp_path, command):
    memory._record_memory_history()
    held = train_a_little()
    memory._dump_snapshot(str(tmp_path / "s.pickle"))
    output = ["-o", str(tmp_path / "out")] if command.endswith("plot") else []
    done = subprocess.run(
        [sys.executable, "-m", "torch.cuda._memory_viz", command, *output, "s.pickle"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout if not output else (tmp_path / "out").stat().st_size > 1000
    del held


def allocate_here():
    return torch.ones(3 * MiB, dtype=torch.uint8, device=D)


def test_an_event_says_who_asked_and_for_what():
    memory._record_memory_history()
    x = allocate_here()
    pointer = x.data_ptr()
    y = x + 1
    del x
    (alloc,) = [e for e in events("alloc") if e["addr"] == pointer]
    assert (alloc["size"], alloc["stream"], alloc["pool_id"]) == (3 * MiB, 0, (0, 0))
    names = [frame["name"] for frame in alloc["frames"]]
    assert names.index("allocate_here") < names.index("test_an_event_says_who_asked_and_for_what")
    assert alloc["frames"][names.index("allocate_here")]["filename"] == __file__
    assert [e["user_metadata"] for e in events("alloc")][-1] == "aten::add"
    freed = [e["action"] for e in events() if e.get("addr") == pointer and "free" in e["action"]]
    assert freed == ["free_requested", "free_completed"]
    (segment, *_) = events("segment_alloc")
    assert segment["frames"] and segment["size"] >= 3 * MiB
    times = [e["time_us"] for e in events()]
    assert times == sorted(times) and times[0] > 1e15
    assert events()[-1]["action"] == "snapshot"
    del y


def test_simulated_time_of_events_goes_on():
    memory._record_memory_history()
    x = torch.ones(MiB, device=D)
    for _ in range(3):
        x = x * 2
    times = [e["simulated_ns"] for e in events("alloc")]
    assert times == sorted(times) and times[-1] > times[0]


@pytest.mark.parametrize(
    ("context", "with_frames"),
    [
        (None, (False, False, False)),
        ("state", (True, False, False)),
        ("alloc", (True, True, False)),
        ("all", (True, True, True)),
    ],
)
def test_context_chooses_what_has_stacks(context, with_frames):
    memory._record_memory_history(context=context)
    kept, freed = empty(5 * MiB), empty(MiB)
    del freed
    snapshot = memory._snapshot()
    (block,) = [b for b in used_blocks(snapshot) if b["address"] == kept.data_ptr()]
    trace = snapshot["device_traces"][0]
    alloc = next(e for e in trace if e["action"] == "alloc")
    free = next(e for e in trace if e["action"] == "free_requested")
    assert tuple(bool(x["frames"]) for x in (block, alloc, free)) == with_frames


def test_state_alone_keeps_no_events():
    memory._record_memory_history(enabled="state")
    x = empty(MiB)
    snapshot = memory._snapshot()
    assert not any(snapshot["device_traces"])
    assert next(b for b in used_blocks(snapshot) if b["address"] == x.data_ptr())["frames"]


def test_the_newest_events_are_kept():
    memory._record_memory_history(max_entries=5, skip_actions=["snapshot", "free_completed"])
    for size in range(1, 8):
        empty(size * MiB)
    found = events()
    assert [e["action"] for e in found] == ["free_requested"] + ["alloc", "free_requested"] * 2
    assert [e["size"] // MiB for e in found] == [5, 6, 6, 7, 7]
    memory._record_memory_history(max_entries=2, skip_actions=["snapshot", "free_completed"])
    empty(MiB)
    assert [e["size"] // MiB for e in events()] == [1, 1]
    memory._record_memory_history(max_entries=100, skip_actions=["snapshot", "free_completed"])
    empty(2 * MiB)
    assert [e["size"] // MiB for e in events()] == [1, 1, 2, 2]


def test_off_and_legacy_spelling():
    memory._record_memory_history(True)
    empty(MiB)
    memory._record_memory_history(enabled=None)
    count = len(events())
    empty(MiB)
    assert len(events()) == count > 0
    memory._record_memory_history(False, clear_history=True)
    assert not events()


def test_cpp_stacks():
    memory._record_memory_history(stacks="all", max_entries=1, skip_actions=["snapshot"])
    x = empty(MiB)
    names = [f["name"] for f in events("alloc")[0]["frames"]]
    assert "test_cpp_stacks" in names and any("::" in name for name in names)
    del x


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"enabled": "some"}, "enabled is 'some', expected None, 'state' or 'all'"),
        ({"context": "free"}, "context is 'free'"),
        ({"stacks": "cpp"}, "stacks is 'cpp', expected 'python' or 'all'"),
        ({"max_entries": 0}, "max_entries is 0"),
        ({"skip_actions": ["malloc"]}, "skip_actions has 'malloc', expected some of alloc,"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        memory._record_memory_history(**wrong)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4 * MiB), st.integers(0, 5)), max_size=40))
def test_events_add_up_to_the_state(steps):
    gc.collect()
    torch.neuron.empty_cache()
    start = {b["address"]: b["size"] for b in used_blocks(memory._snapshot())}
    reserved = torch.neuron.memory_reserved()
    memory._record_memory_history(context=None, clear_history=True)
    held = {}
    for size, slot in steps:
        held.pop(slot, None)
        if size:
            held[slot] = empty(size)
    snapshot = memory._snapshot()
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in start
            start[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert start.pop(event["addr"]) == event["size"]
        reserved += event["size"] * (event["action"] == "segment_alloc")
        reserved -= event["size"] * (event["action"] == "segment_free")
    assert start == {b["address"]: b["size"] for b in used_blocks(snapshot)}
    assert reserved == torch.neuron.memory_reserved()
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    assert torch.neuron.memory_allocated() == sum(s["allocated_size"] for s in snapshot["segments"])


def test_every_device_has_its_trace(run_child):
    run_child(
        """
        import torch
        torch.neuron.memory._record_memory_history()
        a, b = torch.empty(1 << 20, device="neuron:0"), torch.empty(1 << 20, device="neuron:2")
        snapshot = torch.accelerator.memory._snapshot()
        assert [bool(t) for t in snapshot["device_traces"]] == [True, False, True]
        assert {s["device"] for s in snapshot["segments"]} == {0, 2}
        assert len(torch.neuron.memory_snapshot()) == len(snapshot["segments"])
        """
    )


def test_out_of_memory_is_an_event(capacity):
    memory._record_memory_history()
    capacity(10 * MiB)
    with pytest.raises(torch.OutOfMemoryError):
        empty(20 * MiB)
    capacity(0)
    (oom,) = events("oom")
    free = 10 * MiB - torch.neuron.memory_reserved()  # what other tests have left alive
    assert (oom["size"], oom["device_free"]) == (20 * MiB, free)
    assert oom["frames"] and "addr" not in oom
    assert "OutOfMemoryError" in _memory_viz.trace(memory._snapshot())


def test_threads_allocate_while_snapshots_are_taken(run_child):
    run_child(
        """
        import threading, torch
        torch.neuron.memory._record_memory_history(max_entries=1000)
        def work():
            x = torch.ones(1000, device="neuron")
            for _ in range(200):
                x = x + 1
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads: t.start()
        while any(t.is_alive() for t in threads):
            torch.neuron.memory._snapshot()
        for t in threads: t.join()
        """
    )


def test_torchtitans_memory_profiler(tmp_path, monkeypatch):
    profiler = pytest.importorskip("torchtitan.tools.profiler")
    monkeypatch.setattr(profiler, "device_module", torch.neuron)
    titan = profiler.MemoryProfiler(0, 2, str(tmp_path), "", rank=0, max_entries=10_000)
    held = []
    for _ in range(2):
        held.append(train_a_little())
        titan.step()
    (file,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    snapshot = pickle.loads(file.read_bytes())
    assert "train_a_little" in _memory_viz.memory(snapshot, format_flamegraph=str)
