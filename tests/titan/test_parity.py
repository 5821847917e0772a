"""The same losses, step by step, whatever the layout, the device and the backend; from one seed checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .torchrun import needs_neuron, torchrun_train

DP, REP, TP, PP, CP = (
    f"parallelism.{name}_degree"
    for name in (
        "data_parallel_shard",
        "data_parallel_replicate",
        "tensor_parallel",
        "pipeline_parallel",
        "context_parallel",
    )
)
# layout -> ranks, settings
LAYOUTS: dict[str, tuple[int, list[str]]] = {
    "single": (1, []),
    "tp2": (2, [f"{TP}=2"]),
    "pp2": (2, [f"{PP}=2", "parallelism.pipeline_parallel_schedule=1F1B"]),
    "cp2": (2, [f"{CP}=2"]),
    "fsdp2": (2, [f"{DP}=2", "training.local_batch_size=1"]),
    "ddp2": (2, [f"{REP}=2", f"{DP}=1", "training.local_batch_size=1"]),
    "fsdp2-tp2": (4, [f"{DP}=2", f"{TP}=2", "training.local_batch_size=1"]),
}
GLOO = ("gloo", "cpu")
NEURON = ("neuron", "neuron")
Losses = Callable[[str, tuple[str, str]], list[float]]


@pytest.fixture(scope="session")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Losses of a layout on a (backend, device), each trained once."""
    seed = tmp_path_factory.mktemp("seed") / "out"
    made = torchrun_train(
        seed, 1, "llama3_parity", "checkpoint.enable=true", "checkpoint.create_seed_checkpoint=true"
    )
    assert made.status == 0, made.output
    start = [
        "checkpoint.enable=true",
        "checkpoint.load_only=true",
        f"checkpoint.initial_load_path={seed}/checkpoint/step-0",
    ]
    known: dict[tuple[str, tuple[str, str]], list[float]] = {}

    def of(layout: str, where: tuple[str, str]) -> list[float]:
        if (layout, where) not in known:
            ranks, settings = LAYOUTS[layout]
            folder: Path = tmp_path_factory.mktemp(layout) / "out"
            run = torchrun_train(
                folder, ranks, "llama3_parity", *start, *settings, backend=where[0], device=where[1]
            )
            assert run.status == 0, run.output
            assert len(run.losses) == 3, run.output
            assert f"loss    {run.losses[0]:.5f} -> {run.losses[2]:.5f}" in run.output
            known[layout, where] = run.losses
        return known[layout, where]

    return of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("layout", "reference", "digits"),
    [
        ("tp2", "single", 5),
        ("pp2", "single", 5),
        ("cp2", "single", 5),
        ("ddp2", "fsdp2", 5),
        ("fsdp2-tp2", "fsdp2", 5),
    ],
)
def test_layouts_agree(losses: Losses, layout: str, reference: str, digits: int) -> None:
    assert losses(layout, GLOO) == pytest.approx(losses(reference, GLOO), rel=2 * 10**-digits)


@pytest.mark.timeout(600)
def test_the_loss_falls(losses: Losses) -> None:
    first, *_, last = losses("single", GLOO)
    assert 7.5 < first < 8.7
    assert last < first - 0.3


@needs_neuron
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["single", "tp2", "fsdp2-tp2"])
def test_neuron_equals_gloo(losses: Losses, layout: str) -> None:
    assert losses(layout, NEURON) == pytest.approx(losses(layout, GLOO), rel=2e-5)


@needs_neuron
@pytest.mark.timeout(600)
def test_the_backend_alone_equals_gloo(losses: Losses) -> None:
    assert losses("tp2", ("neuron", "cpu")) == pytest.approx(losses("tp2", GLOO), rel=2e-5)
