"""The memory that a recipe is said to need, against what its ranks then hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neuron_dist.testing import run_ranks
from neuron_dist.testing.titan_cases import PRELOAD
from neuron_dist.titan.check import check
from neuron_dist.titan.sizing.live import LiveBytes, allocated_bytes
from neuron_dist.titan.sizing.schedule import in_flight
from neuron_dist.titan.sizing.stages import stages_of
from tests.titan import sizing_ranks
from tests.titan.torchrun import needs_neuron

SMALL = ["training.steps=2", "training.seq_len=128", "trace=null", "activation_checkpoint=full"]
P = "parallelism."
PEAK_TOLERANCE = 0.15
"""Of the peak: what is an estimate in it, at these sizes, where constants count as much as activations do."""

CASES = {
    "fsdp2 x tp2": ("layouts/fsdp2_tp2", 4, ["training.global_batch_size=8"]),
    "tp4": ("layouts/tp4", 4, ["activation_checkpoint=selective"]),
    "pp2": ("pipeline/1f1b_pp2", 2, ["training.local_batch_size=4"]),
    "experts over 2": ("deepseek_v3_debug", 2, ["debug.moe_force_load_balance=true"]),
}


@needs_neuron
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_needs_are_those_of_a_run(case: str, tmp_path: Path) -> None:
    recipe, ranks, settings = CASES[case]
    settings = [*SMALL, *settings]
    (needs,) = run_ranks(
        1, sizing_ranks.size, recipe, settings, ranks, backend=None, preload=PRELOAD, timeout=250
    )
    real = run_ranks(
        ranks, sizing_ranks.run, recipe, settings, str(tmp_path), backend=None, preload=PRELOAD, timeout=250
    )  # fmt: skip
    for rank, found in enumerate(real):
        need = next(n for n in needs if rank in n.ranks)
        told = {name: getattr(need, name) for name in ("parameters", "gradients", "optimizer")}
        assert told == {name: found[name] for name in told}, f"rank {rank}"
        assert need.peak == pytest.approx(found["peak"], rel=PEAK_TOLERANCE), f"rank {rank}"


def test_live_bytes_count_storages_once_and_forget_them() -> None:
    with FakeTensorMode(), LiveBytes("cpu") as live:
        a = torch.empty(1000, dtype=torch.float32)
        assert live.live == allocated_bytes(4000)
        b = a.view(10, 100).t()
        assert live.live == allocated_bytes(4000)
        c = a + 1
        assert (live.live, live.peak) == (2 * allocated_bytes(4000),) * 2
        del a, b
        assert live.live == allocated_bytes(4000)
        c.untyped_storage().resize_(0)
        assert live.live == 0
        c.untyped_storage().resize_(4000)
        del c
        assert (live.live, live.peak) == (0, 2 * allocated_bytes(4000))


def test_a_pause_makes_storages_that_never_count() -> None:
    with FakeTensorMode(), LiveBytes("cpu") as live:
        with live.paused():
            a = torch.empty(1000)
        assert (a.numel(), live.live, live.peak) == (1000, 0, 0)


@needs_neuron
@pytest.mark.parametrize("nbytes", [1, 256, 257, 4000, 5000, 1 << 20, (1 << 20) + 1, (16 << 20) + 1])
def test_allocated_bytes_are_those_of_the_device(nbytes: int) -> None:
    before = torch.neuron.memory_allocated()
    tensor = torch.empty(nbytes, dtype=torch.uint8, device="neuron")
    assert torch.neuron.memory_allocated() - before == allocated_bytes(tensor.nbytes)


@pytest.mark.parametrize(
    ("schedule", "stages", "expected"),
    [
        ("1F1B", 4, [[{0: 4}], [{1: 3}], [{2: 2}], [{3: 1}]]),
        ("GPipe", 4, [[{0: 8}], [{1: 8}], [{2: 8}], [{3: 8}]]),
        ("LoopedBFS", 8, [[{r: 8, r + 4: 8}] for r in range(4)]),
    ],
)
def test_micro_batches_in_flight(schedule: str, stages: int, expected: list[object]) -> None:
    assert [in_flight(rank, 4, schedule, stages, 8) for rank in range(4)] == expected


@pytest.mark.parametrize(
    "schedule", ["Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
)
def test_interleaved_schedules_keep_less_than_everything(schedule: str) -> None:
    for rank in range(4):
        for moment in in_flight(rank, 4, schedule, 8, 8):
            assert 0 < sum(moment.values()) < 16


def test_stages_have_every_layer_once() -> None:
    plan = check("pipeline/interleaved_1f1b_pp2", device="cpu", backend="gloo")
    stages = stages_of(plan.config, plan.layout)
    assert [s.layers.total() for s in stages] == [1, 2, 2, 1]
    assert [(s.sample.first, s.sample.last) for s in stages] == [(True, False), (False, False), (False, False), (False, True)]  # fmt: skip
    assert stages[1].sample == stages[2].sample
    plan = check("deepseek_v3_debug", device="cpu", backend="gloo")
    (whole,) = stages_of(plan.config, plan.layout)
    assert (whole.layers, whole.sample_layers) == ({0: 1, 1: 3}, (0, 1, 2))
