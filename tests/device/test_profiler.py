"""torch.profiler with ProfilerActivity.PrivateUse1: the device's spans, in simulated time."""

import itertools
import json
import warnings

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from neuron_dist import _C
from neuron_dist.testing import run_ranks

D = "neuron"
BOTH = (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)
pytestmark = pytest.mark.skipif(not _C._has_profiler, reason="this torch has no Kineto")


def work(n=256):
    x = torch.ones(n, n, device=D)
    y = (x @ x).relu()
    torch.neuron.synchronize()
    return y


def device_events(prof):
    return [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]


def test_spans_last_as_long_as_the_clock_says():
    work()
    with profile(activities=BOTH) as prof:
        x = torch.ones(256, 256, device=D)
        begin = torch.neuron.Event(enable_timing=True)
        end = torch.neuron.Event(enable_timing=True)
        begin.record()
        x @ x
        end.record()
        torch.neuron.synchronize()
    (span,) = [e for e in device_events(prof) if e.name == "kernel aten::mm"]
    # Nothing was queued before it, so the events are as far apart as the kernel is long, plus its dispatch.
    assert 0 < span.time_range.elapsed_us() <= begin.elapsed_time(end) * 1000 + 0.001


def test_key_averages_have_the_devices_time():
    work()
    with profile(activities=BOTH) as prof:
        work()
    rows = {(row.key, row.device_type): row for row in prof.key_averages()}
    kernel = rows["kernel aten::mm", DeviceType.PrivateUse1]
    operator = rows["aten::mm", DeviceType.CPU]
    assert kernel.self_device_time_total == operator.device_time_total > 0
    assert operator.self_cpu_time_total > 0
    table = prof.key_averages().table(sort_by="self_device_time_total")
    assert "kernel aten::mm" in table and "NEURON" in table.upper()


def test_chrome_trace_has_both_sides(tmp_path):
    with profile(activities=BOTH) as prof:
        work()
        torch.ones(1000).to(D).cpu()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    (mm,) = [e for e in kernels if e["name"] == "kernel aten::mm"]
    assert (
        mm["args"]["flops"] == 2 * 256**3 and mm["args"]["bytes"] == 2 * 256 * 256 * 4
    )  # x @ x reads x once
    assert mm["dur"] * 1000 == pytest.approx(mm["args"]["simulated duration (ns)"], abs=1)
    (host,) = [e for e in events if e.get("cat") == "cpu_op" and e["name"] == "aten::mm"]
    assert host["args"]["External id"] == mm["args"]["External id"]
    copies = {e["name"] for e in events if e.get("cat") == "gpu_memcpy"}
    assert copies == {"Memcpy HtoD (Host -> neuron)", "Memcpy DtoH (neuron -> Host)"}
    labels = [e["args"].get("labels", "") for e in events if e["name"] == "process_labels"]
    assert "neuron:0 (simulated time)" in labels


def test_spans_of_a_stream_do_not_overlap():
    side = torch.neuron.Stream()
    with profile(activities=BOTH) as prof:
        work()
        with torch.neuron.stream(side):
            work()
    spans = {}
    for event in device_events(prof):
        spans.setdefault(event.device_resource_id, []).append(event.time_range)
    assert {0, side.stream_id} <= spans.keys()
    for ranges in spans.values():
        ranges.sort(key=lambda r: r.start)
        for before, after in itertools.pairwise(ranges):
            assert before.end <= after.start + 0.002  # torch keeps microseconds


def test_without_the_activity_there_is_no_span():
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        work()
    assert not device_events(prof)
    assert any(e.name == "aten::mm" for e in prof.events())


def test_only_the_device():
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        work()
    assert any(e.name == "kernel aten::mm" for e in device_events(prof))


def test_schedule_and_backward():
    seen = []
    x = torch.ones(64, 64, device=D, requires_grad=True)
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda p: seen.append(
            sum(e.name == "kernel aten::mm" for e in device_events(p))
        ),
        record_shapes=True,
        with_flops=True,
        profile_memory=True,
        with_stack=True,
    ) as prof:
        for _ in range(8):
            (x @ x).sum().backward()
            torch.neuron.synchronize()
            prof.step()
    assert seen == [6, 6]  # two steps of one forward and two backward products


def test_nothing_is_recorded_while_the_clock_is_off():
    _C._set_simulation(False)
    try:
        with profile(activities=BOTH) as prof:
            work()
    finally:
        _C._set_simulation(True)
    assert not device_events(prof)


def profiled_all_reduce():
    x = torch.ones(1 << 16, device=D)
    with profile(activities=BOTH) as prof:
        torch.distributed.all_reduce(x)
        y = x * 2
        torch.neuron.synchronize()
    del y
    return [(e.name, e.time_range.elapsed_us(), e.device_index) for e in device_events(prof)]


def test_collectives_are_spans_of_their_group():
    results = run_ranks(2, profiled_all_reduce)
    for rank, spans in enumerate(results):
        collective = [s for s in spans if s[0] == "collective all_reduce"]
        assert len(collective) == 1 and collective[0][1] > 0 and collective[0][2] == rank
        assert any(name == "kernel aten::mul" for name, _, _ in spans)
    first, second = (next(s[1] for s in spans if "collective" in s[0]) for spans in results)
    assert first == pytest.approx(second)  # it lasts as long for both


def test_neuron_profiler(tmp_path):
    from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode

    config = NeuronConfig(
        modes=[ProfileMode.DEVICE, ProfileMode.RUNTIME],
        profile_output_dir=tmp_path,
        max_events_per_nc=2,
        capture_enabled_for_nc="0,2-5",
        neff_cache_dir="unused",
        precache_node_info=True,
    )
    exporter = NeuronProfiler(config)
    with profile(activities=BOTH, experimental_config=config, on_trace_ready=exporter.export_trace):
        work()
    folder = exporter.output_dir
    assert folder.parent == tmp_path and folder.name.startswith("trn2.48xlarge_pid_")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "kernel" for e in events) == 2
    assert any(e.get("cat") == "cpu_op" for e in events)


def test_modes_and_devices_are_filters(tmp_path):
    from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode

    for config, kernels, operators in (
        (NeuronConfig([ProfileMode.DEVICE], tmp_path / "a"), True, False),
        (NeuronConfig([ProfileMode.RUNTIME], tmp_path / "b"), False, True),
        (NeuronConfig(profile_output_dir=tmp_path / "c", capture_enabled_for_nc="7"), False, True),
    ):
        exporter = NeuronProfiler(config)
        with profile(activities=BOTH, on_trace_ready=exporter.export_trace):
            work()
        trace = json.loads((exporter.output_dir / "trace.json").read_text())["traceEvents"]
        categories = {e.get("cat") for e in trace}
        assert ("kernel" in categories, "cpu_op" in categories) == (kernels, operators)


def test_early_form_of_neuron_profiler(tmp_path):
    import torch_neuronx

    profiler = torch_neuronx.NeuronProfiler(
        pytorch_activities=BOTH, neuron_output_dir=tmp_path, event_filters=["mm"]
    )
    with profiler:
        work()
    trace = json.loads((profiler.output_dir / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in trace if e.get("cat") == "kernel"} == {"kernel aten::mm"}


def test_wrong_configurations():
    from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode

    with pytest.raises(TypeError, match=r"expected some of ProfileMode.DEVICE"):
        NeuronConfig(modes=["device"])
    with pytest.raises(ValueError, match="max_events_per_nc is 0"):
        NeuronConfig(max_events_per_nc=0)
    with pytest.raises(ValueError, match=r"'0-x', expected indices"):
        NeuronConfig(capture_enabled_for_nc="0-x")
    with pytest.raises(TypeError, match="takes a NeuronConfig, not dict"):
        NeuronProfiler({})
    with pytest.warns(UserWarning, match="nothing is written for CPU_UTIL"):
        NeuronConfig(modes=[ProfileMode.CPU_UTIL])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NeuronConfig()
