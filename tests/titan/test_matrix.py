"""Ten cases of TorchTitan's matrix (benchmarks/titan_matrix.py runs all), and cases from the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neuron_dist.testing import run_ranks
from neuron_dist.testing.titan_cases import (
    BACKENDS,
    Case,
    Outcome,
    Seeds,
    Verdict,
    compare,
    load_cases,
    run_case,
)
from neuron_dist.testing.titan_docs import render, table

CASES = Path(__file__).parents[2] / "benchmarks" / "titan_matrix.yaml"
ALL = {case.name: case for case in load_cases(CASES)}
FAST = [name for name, case in ALL.items() if case.fast]
TIMEOUT_S = 110


def shorter(case: Case) -> Case:
    """Fewer steps, where nothing else depends on their number."""
    if case.then or case.files:
        return case
    return replace(case, settings=(*case.settings, "training.steps=4"))


@pytest.fixture(scope="session")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Seeds:
    return Seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAST)
def test_case(name: str, seeds: Seeds, tmp_path: Path) -> None:
    case = shorter(ALL[name])
    backends = [b for b in BACKENDS if not (b == "gloo" and case.gloo)]
    outcomes = {b: run_case(case, b, tmp_path / b, seeds, TIMEOUT_S) for b in backends}
    errors = [o.error for o in outcomes.values() if o.error]
    assert not errors, errors[0]
    verdict = compare(case, outcomes)
    assert verdict.ok, f"{verdict.text}: {outcomes}"
    losses = list(outcomes["neuron"].losses.values())
    assert losses[-1] < losses[0], losses


def test_there_are_ten() -> None:
    assert len(FAST) == 10


@pytest.mark.timeout(600)
def test_all_tokens_to_one_expert_for_20_steps(seeds: Seeds, tmp_path: Path) -> None:
    """The other rank of the two receives no token at all, and must not be waited for."""
    case = replace(
        ALL["qwen3 experts, ep2"],
        settings=(
            *ALL["qwen3 experts, ep2"].settings,
            "model.n_layers=1",
            "model.top_k=1",
            "training.seq_len=32",
            "training.steps=20",
            "override.imports=[tests.titan.one_expert.one_expert, "
            "neuron_dist.titan.attention.dense_flex_attention]",
        ),
    )
    outcome = run_case(case, "neuron", tmp_path / "run", seeds, TIMEOUT_S)
    assert not outcome.error, outcome.error
    assert len(outcome.losses) == 20
    assert outcome.losses[20] < outcome.losses[1]


def _step_of_3_in_2_microbatches() -> None:
    """torch's stages settle the shape of all messages by the first microbatch, here of 2 samples; the last has 1."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    device = torch.device("neuron", rank)
    stage = PipelineStage(torch.nn.Linear(4, 4).to(device), rank, 2, device)
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
    batch = torch.zeros(3, 4, device=device)
    schedule.step(*([batch] if rank == 0 else []), target=batch if rank == 1 else None)


def test_a_shorter_last_microbatch_is_told_on_both_ranks_with_its_size() -> None:
    """Gloo receives it into the longer buffer and goes on."""
    errors = run_ranks(
        2,
        _step_of_3_in_2_microbatches,
        preload=["torch.distributed.pipelining"],
        return_exceptions=True,
    )
    for error in errors:
        assert "send(float32, numel=4" in str(error)
        assert "recv(float32, numel=8" in str(error)


# --- the matrix's own machinery


def outcomes(gloo: float, neuron: float) -> dict[str, Outcome]:
    return {"gloo": Outcome({1: 8.0, 10: gloo}), "neuron": Outcome({1: 8.0, 10: neuron})}


@pytest.mark.parametrize(
    ("ranks", "gloo", "neuron", "ok"),
    [
        (2, 3.0, 3.0, True),
        (2, 3.0, 3.00005, True),
        (2, 3.0, 3.0001, False),
        (4, 3.0, 3.005, True),
        (4, 3.0, 3.01, False),
    ],
)
def test_losses_must_agree_to_5_digits_on_2_ranks_and_to_3_on_4(
    ranks: int, gloo: float, neuron: float, ok: bool
) -> None:
    assert compare(Case(ranks=ranks), outcomes(gloo, neuron)).ok is ok


def test_the_mark_of_a_rank_that_does_not_know_the_loss_is_no_loss() -> None:
    assert not compare(Case(), outcomes(-1.0, -1.0)).ok


def test_a_step_that_one_backend_has_not_done_is_a_failure() -> None:
    missing = {"gloo": Outcome({1: 8.0, 2: 7.0}), "neuron": Outcome({1: 8.0})}
    assert not compare(Case(), missing).ok


def test_a_failure_names_the_backend_and_the_error() -> None:
    failed = {"gloo": Outcome({1: 8.0}), "neuron": Outcome(error="Traceback\nValueError: no\n")}
    assert compare(Case(), failed) == Verdict(False, "neuron failed: ValueError: no")


def test_a_case_that_was_not_run_does_not_pass() -> None:
    assert not compare(Case(), {}).ok
    assert not compare(Case(gloo="why"), {}).ok
    assert not compare(Case(refused="why"), {}).ok


def test_a_case_of_one_backend_does_not_count_as_equal() -> None:
    alone = {"gloo": Outcome({1: 8.0})}
    verdict = compare(Case(name="one"), alone)
    assert verdict == Verdict(True, "not compared")
    assert "0 of 1 that Gloo can run agree" in table(
        [Case(name="one")], {"one": alone}, {"one": verdict}
    )


def test_outcomes_survive_json() -> None:
    outcome = Outcome({1: 8.0, 10: 3.5}, 2.0, "")
    assert Outcome.from_json({**outcome.as_json(), "losses": {"1": 8.0, "10": 3.5}}) == outcome


def test_an_unknown_field_of_a_case_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text("recipe: llama3_debug\nsettings: []\ncases:\n  one: {rank: 2}\n")
    with pytest.raises(ValueError, match="rank"):
        load_cases(path)


def test_the_table_and_the_page_name_every_case() -> None:
    cases = [ALL["fsdp2"], ALL["cpu offload"], ALL["nvfp4"]]
    results = {"fsdp2": outcomes(3.0, 3.0), "cpu offload": {"neuron": Outcome({1: 8.0, 10: 3.0})}}
    verdicts = {"fsdp2": Verdict(True, "equal"), "cpu offload": Verdict(True, "runs")}
    verdicts["nvfp4"] = Verdict(False, "was not asked")
    terminal, page = table(cases, results, verdicts), render(cases, results, verdicts)
    for text in (terminal, page):
        assert all(case.name in text for case in cases)
        assert ("FAILED: was not asked" in text) is (text is terminal)
        assert ("Not run for this page: nvfp4." in text) is (text is page)
        assert "1 of 1 that Gloo can run agree (1 to the last bit)" in text


def test_preloading_imports_before_the_fork() -> None:
    assert run_ranks(2, _imported, backend=None, preload=["this"]) == [True, True]


def _imported() -> bool:
    import sys

    return "this" in sys.modules
