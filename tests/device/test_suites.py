"""A fixed part of the suites that benchmarks/op_coverage.py runs beside the operators: the same as on the CPU."""

from typing import Any

import pytest
import torch

from neuron_dist.testing import module_checks, op_docs, optimizer_checks
from neuron_dist.testing.op_workers import Case, stable_hash
from neuron_dist.testing.suites import SUITES

PERCENT = {"refs": 5, "extensions": 100, "tracing": 1, "modules": 10, "optimizers": 25}
"""The part of each suite's entries, in their usual dtype, chosen by a hash of their names. Sharded tensors need ranks:
see tests/distributed/test_dtensor_ops.py."""


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.op}-{case.dtype}")
        for name, percent in PERCENT.items()
        for case in SUITES[name].cases()
        if SUITES[name].usual(case) and stable_hash(case) < percent
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_entry(name: str, case: Case) -> None:
    if case.op in op_docs.REASONS.get(name, {}):
        pytest.skip(op_docs.REASONS[name][case.op])
    suite = SUITES[name]
    wrong = []
    for todo in suite.todo(case, frozenset(suite.meaning), 1):
        for outcome in suite.run(case, todo, "neuron"):
            if outcome.reason is not None:
                wrong.append(f"sample {todo[0]}, {outcome.variant}: {outcome.reason}")
    assert not wrong, "\n".join(wrong)


def test_a_module_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    info = module_checks.all_modules()["nn_Linear"]
    sample = module_checks.samples(info, torch.float32, True)[0]
    forward = torch.nn.Linear.forward

    def other(self: torch.nn.Linear, input: torch.Tensor) -> torch.Tensor:
        y = forward(self, input)
        return y * 1.0001 if y.is_neuron else y

    monkeypatch.setattr(torch.nn.Linear, "forward", other)
    outcome = module_checks.check(info, "forward", sample, torch.float32, True)
    assert outcome.reason == "values"


def test_an_optimizer_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    info = optimizer_checks.all_optimizers()["SGD"]
    sample = optimizer_checks.samples(info, torch.float32)[0]
    step = torch.optim.SGD.step

    def other(self: torch.optim.SGD, closure: Any = None) -> Any:
        result = step(self, closure)
        for p in self.param_groups[0]["params"]:
            if p.is_neuron:
                p.data.mul_(1.0001)
        return result

    monkeypatch.setattr(torch.optim.SGD, "step", other)
    outcome = optimizer_checks.check(info, "for-loop", sample, torch.float32)
    assert outcome.reason == "values"
