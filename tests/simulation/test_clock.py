"""The native clock: hand-computed programs to the nanosecond, and what must not depend on the machine."""

import json
import math
import os
import subprocess
import sys
import textwrap

import pytest

from collectives import plan
from collectives.topology import load_cluster
from neuron_dist.simulation.roofline import FROM_DEVICE, TO_DEVICE, Roofline
from neuron_dist.testing import run_ranks
from tests.simulation import programs

CLUSTER = load_cluster("trn2.48xlarge")
CORE = Roofline.of(CLUSTER)


def price_ns(op, nbytes, ranks, **kwargs):
    return math.floor(plan(op, nbytes, range(ranks), CLUSTER, **kwargs).time_ns + 0.5)


def mm_ns(m, k, n, item=4):
    return CORE.duration_ns(2 * m * k * n, item * (m * k + k * n + m * n))


def test_two_ranks_by_hand():
    numel = 1 << 20
    early, late = sorted(run_ranks(2, programs.late_rank, numel), key=lambda r: r[1])
    begin, ready, end, last, ms = late
    assert early[0] == early[1] == begin  # rank 1 came at once
    # a @ a: both factors are the same tensor, so it is read once
    product = CORE.duration_ns(2 * 512**3, 4 * (512 * 512 + 512 * 512))
    assert ready == begin + product
    lasts = price_ns("all_reduce", 4 * numel, 2)
    assert end == early[2] == ready + lasts
    assert ms == pytest.approx(lasts / 1e6, rel=1e-6) and early[4] == ms
    addition = CORE.duration_ns(0, 8 * numel)
    assert last == early[3] == end + addition


@pytest.mark.parametrize("algorithm, ranks", [("ring", 4), ("ring", 8), ("mesh", 8), ("rdh", 8)])
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_collectives_last_what_their_schedules_cost(op, algorithm, ranks):
    """The schedules' own prices are held against closed forms in tests/collectives."""
    numel = 1 << 18
    seen = run_ranks(ranks, programs.one_call, op, numel, algorithm)
    expected = price_ns(op, 4 * numel, ranks, algorithm=algorithm) / 1e6
    assert seen == pytest.approx([expected] * ranks, rel=1e-6)


# One rank on each chip of a row, four chips in a ring. Time over its links in units of a segment (a quarter of the
# tensor), and hops, of an all_reduce:
#   ring  2 (n - 1) steps, each moves a segment, cut over the channels, over one link
#   mesh  two steps; over each link goes a neighbour's segment, and one between opposite chips, which crosses two links:
#         two segments, and one hop through a chip in between
#   rdh   log2 n exchanges with a neighbour each way, of two segments and of one
CLOSED_FORMS = {
    "ring": lambda c, hop, extra, channels: 2 * 3 * (c / channels + hop),
    "mesh": lambda c, hop, extra, channels: 2 * (2 * c + hop + extra),
    "rdh": lambda c, hop, extra, channels: 2 * (2 * c + c + 2 * hop),
}


@pytest.mark.parametrize("algorithm", CLOSED_FORMS)
def test_closed_forms(algorithm):
    numel, chips = 1 << 20, [0, 4, 8, 12]
    p = CLUSTER.parameters
    segment_ns = 4 * numel / 4 / (128e9 * p["link_efficiency"]) * 1e9
    channels = len({int(c) for c in row_plan(algorithm, numel, chips).schedule.rows.channel})
    form = CLOSED_FORMS[algorithm](segment_ns, p["hop_ns"], p["extra_hop_ns"], channels)
    expected = p["base_ns"] + form
    assert row_plan(algorithm, numel, chips).time_ns == pytest.approx(expected, rel=1e-9)
    seen = run_ranks(16, programs.on_chips, numel, algorithm, chips)
    assert [seen[r] for r in chips] == [math.floor(expected + 0.5)] * 4


def row_plan(algorithm, numel, chips):
    return plan("all_reduce", 4 * numel, chips, CLUSTER, algorithm=algorithm)


def test_estimator_equals_what_runs():
    for microseconds, ms, untouched in run_ranks(4, programs.estimate, [1 << 10, 1 << 20]):
        assert microseconds == pytest.approx(1e3 * sum(ms), rel=1e-6)
        assert untouched


def test_messages_by_hand():
    small, large = 1024, 1 << 20
    sender, receiver = run_ranks(2, programs.messages, [small, large, large])
    costs = [price_ns("send", n, 2) for n in (small, large, large)]
    begin, ready, ends = sender
    assert ready == begin
    first = begin + costs[0]  # eager: gone when it has left
    assert ends[0] == first
    # Large ones start when the receiver is there, and leave one after the other.
    there = receiver[1]
    second = max(first, there) + costs[1]
    third = max(first + costs[1], there) + costs[2]
    assert ends[1:] == [second, max(second, third)]
    assert receiver[2] == [max(there, first), second, max(second, third)]


def test_cpu_tensors_hold_up_the_host():
    for host, after, before_op, end in run_ranks(2, programs.on_host, 1000):
        assert after == host + price_ns("all_reduce", 4000, 2)
        assert before_op <= host
        assert end == after + CORE.duration_ns(2 * 64**3, 4 * 2 * 64 * 64)


def test_callbacks_begin_where_their_collective_ended():
    results = run_ranks(2, programs.callbacks, 1 << 18)
    for begin, ms, end in results:
        doubled = CORE.duration_ns(0, 8 << 18)
        assert end == begin + round(ms * 1e6) + doubled


@pytest.mark.parametrize("prefetch", [True, False])
def test_same_time_whatever_the_machine_does(prefetch):
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        loaded = run_ranks(4, programs.fsdp, 64, 3, prefetch, 3, 20)
    finally:
        busy.kill()
        busy.wait()
    idle = run_ranks(4, programs.fsdp, 64, 3, prefetch)
    for rank in (*idle, *loaded):
        for step in rank:
            # Memory is not simulated time: a tensor in flight is let go when its collective has really ended.
            assert step.pop("peak_bytes") > 0
    assert idle == loaded
    assert len(idle[0]) == 3


def test_prefetch_hides_communication():
    def last(prefetch):
        return run_ranks(2, programs.fsdp, 512, 4, prefetch)[0][-1]

    with_it, without = last(True), last(False)
    assert with_it["flops"] == without["flops"] > 0
    # What prefetch hides is overlapped, so less is exposed and the step is shorter.
    assert with_it["exposed_ns"] < 0.8 * without["exposed_ns"]
    assert with_it["overlapped_ns"] > without["overlapped_ns"]
    assert with_it["end_ns"] - with_it["start_ns"] < without["end_ns"] - without["start_ns"]


def fast_links(folder, factor):
    """A cluster without latencies whose links, on and between chips, are ``factor`` times as fast."""
    zero = {"value": 0, "source": "a test"}
    cluster = {
        "product": f"x{factor}",
        "extends": "trn2.48xlarge",
        "network": {"link_Bps": [factor * 256e9, factor * 256e9]},
        "assumptions": {
            **dict.fromkeys(("hop_ns", "extra_hop_ns", "base_ns", "launch_ns"), zero),
            "core_Bps": {"value": factor * 368e9, "source": "a test"},
        },
    }
    file = folder / f"x{factor}.yaml"
    file.write_text(json.dumps(cluster))
    return {"NEURON_DIST_CLUSTER": str(file)}


def test_twice_the_bandwidth_halves_what_is_exposed(tmp_path):
    def exposed(factor):
        env = fast_links(tmp_path, factor)
        steps = run_ranks(8, programs.all_reduces, 1 << 20, 3, env=env)[0][1:]
        assert all(s["exposed_ns"] == s["end_ns"] - s["start_ns"] for s in steps)
        return [s["exposed_ns"] for s in steps]

    assert exposed(2) == pytest.approx([ns / 2 for ns in exposed(1)], abs=1)


# --- one process, without a group


def run(program, **env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_streams_events_and_the_host():
    times = run("""
        import json, torch
        from neuron_dist import _C
        a = torch.zeros(1024, 1024, device="neuron")
        start = _C._device_ns(0)
        s = torch.neuron.Stream()
        begin, end = (torch.neuron.Event(enable_timing=True) for _ in range(2))
        begin.record()
        b = a + 1                              # default stream
        with torch.neuron.stream(s):
            s.wait_event(begin)
            c = a @ a                          # beside it
            end.record()
        torch.neuron.current_stream().wait_event(end)
        d = c + b                              # after both
        host = _C._host_ns()
        torch.neuron.synchronize()
        print(json.dumps([start, begin.elapsed_time(end), _C._device_ns(0), host, _C._host_ns()]))
    """)
    start, ms, end, host, synchronized = times
    product = CORE.duration_ns(2 * 1024**3, 8 << 20)
    add = CORE.duration_ns(0, 8 << 20)
    assert ms == pytest.approx(product / 1e6)
    assert end == start + max(product, add) + CORE.duration_ns(0, 12 << 20)
    assert (host, synchronized) == (0, end)


def test_copies_and_reads_hold_up_the_host():
    to_device, copied, from_device, item = run("""
        import json, torch
        from neuron_dist import _C
        x = torch.zeros(1 << 20)
        torch.zeros(1, device="neuron")
        times = [_C._device_ns(0)]
        y = x.to("neuron"); times.append(_C._host_ns())
        z = y.to("cpu", non_blocking=True); assert _C._host_ns() == times[-1]
        torch.neuron.synchronize(); times.append(_C._host_ns())
        y[0].item(); times.append(_C._host_ns())
        print(json.dumps(times))
    """)
    assert copied - to_device == CORE.duration_ns(0, 4 << 20, moves=TO_DEVICE)
    assert from_device - copied == CORE.duration_ns(0, 4 << 20, moves=FROM_DEVICE)
    assert item - from_device == CORE.duration_ns(0, 4)


def test_dispatch_and_off(tmp_path):
    program = """
        import json, torch
        from neuron_dist import _C
        a = torch.zeros(4, device="neuron")
        for _ in range(10):
            a += 1
        print(json.dumps([_C._host_ns(), _C._device_ns(0)]))
    """
    file = tmp_path / "eager.yaml"
    file.write_text(
        "product: eager\nextends: trn2.48xlarge\n"
        "assumptions:\n  dispatch_ns: {value: 60000, source: users' reports}\n"
    )
    host, device = run(program, NEURON_DIST_CLUSTER=str(file))
    assert host == 11 * 60000 and device == host + CORE.duration_ns(0, 32)
    assert run(program, NEURON_DIST_SIMULATION="off") == [0, 0]


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("NEURON_DIST_SIMULATION", "yes", "expected on or off"),
        ("NEURON_DIST_TRACE_MIB", "lots", "expected a whole number of MiB"),
    ],
)
def test_wrong_settings_are_named(name, value, expected, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.zeros(1, device='neuron')"],
        env={**os.environ, "NEURON_DIST_TRACE": str(tmp_path / "trace"), name: value},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode != 0
    assert name in done.stderr and repr(value) in done.stderr and expected in done.stderr


def flops_of(program):
    """What the clock counted for a program of one process, and what torch's counter says of the same run."""
    return run(f"""
        import json, torch
        from torch import nn
        from torch.utils.flop_counter import FlopCounterMode
        from neuron_dist import _C
        from neuron_dist.simulation import session
        def program(device):
            torch.manual_seed(0)
            {program}
        session.steps_end_here()
        torch.zeros(1, device="neuron")
        session.end_step()
        with FlopCounterMode(display=False) as counter:
            program("neuron")
        session.end_step()
        print(json.dumps([_C._figures()[0]["steps"][-1]["flops"], counter.get_total_flops()]))
    """)


@pytest.mark.parametrize(
    "program",
    [
        "nn.Linear(32, 48).to(device)(torch.randn(7, 32, device=device)).sum().backward()",
        "torch.baddbmm(*(torch.randn(3, 5, 5, device=device) for _ in range(3)))",
        "nn.Conv2d(3, 8, 3, stride=2, padding=1).to(device)(torch.randn(2, 3, 9, 9, device=device)).sum().backward()",
        "nn.Conv1d(4, 8, 3).to(device)(torch.randn(2, 4, 9, device=device, requires_grad=True)).sum().backward()",
        "nn.ConvTranspose2d(3, 8, 3, stride=2).to(device)(torch.randn(2, 3, 5, 5, device=device, requires_grad=True)).sum().backward()",
        "nn.functional.scaled_dot_product_attention(*(torch.randn(2, 4, 16, 8, device=device, requires_grad=True) for _ in range(3)), is_causal=True).sum().backward()",
    ],
)
def test_flops_are_those_of_torch(program):
    ours, torchs = flops_of(program)
    assert ours == torchs > 0
