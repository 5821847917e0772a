"""A fixed part of what benchmarks/op_coverage.py runs: results on neuron equal the CPU's bit for bit.

A tenth of all operator x dtype, chosen by a hash of their names, and every operator in one dtype.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from neuron_dist.testing import op_checks, op_docs
from neuron_dist.testing.op_workers import Case, Record, cause_of, run_cases, stable_hash
from neuron_dist.testing.suites import SUITES

PERCENT = 10
SAMPLES = 2
USUAL = (torch.float32, torch.complex64, torch.int64, torch.bool)


def cases() -> list[Any]:
    out = []
    for op in op_checks.all_ops():
        dtypes = op.supported_dtypes("cpu")
        usual = next((d for d in USUAL if d in dtypes), None)
        for dtype in sorted(dtypes, key=str):
            case = Case(op.formatted_name, str(dtype).removeprefix("torch."))
            if dtype is usual or stable_hash(case) < PERCENT:
                out.append(pytest.param(op, dtype, id=f"{case.op}-{case.dtype}"))
    return out


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_operator(op: Any, dtype: torch.dtype) -> None:
    reasons = op_docs.REASONS.get("ops", {})
    if op.formatted_name in reasons:
        pytest.skip(reasons[op.formatted_name])
    wrong = []
    for i, sample in enumerate(op_checks.samples(op, dtype, SAMPLES)):
        for variant in op_checks.variants_of(op, dtype):
            outcome = op_checks.check(op, variant, sample)
            if outcome is not None and outcome.reason is not None:
                wrong.append(f"sample {i}, {variant}: {outcome.reason}")
    assert not wrong, "\n".join(wrong)


def by_name(name: str) -> Any:
    return next(op for op in op_checks.all_ops() if op.formatted_name == name)


class Pretender:
    """An operator that does something else on the device."""

    def __init__(self, original: Any, on_device: Any) -> None:
        self.original = original
        self.on_device = on_device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = self.original(x, *args, **kwargs)
        return self.on_device(x, result) if x.device.type == "neuron" else result


@pytest.mark.parametrize(
    ("on_device", "reason"),
    [
        (lambda x, r: r.double(), "dtype"),
        (lambda x, r: r[None], "shape"),
        (lambda x, r: torch.nextafter(r, r + 1), "values"),
        (lambda x, r: r.clone(), None),
        (lambda x, r: r.t().contiguous().t() if r.dim() == 2 else r + 1, "strides|values"),
        (lambda x, r: r.cpu(), "device"),
        (lambda x, r: x.copy_(r), "values|aliases"),
        (lambda x, r: torch.stack([r, r])[1], "aliases"),
        (lambda x, r: r.view(r.shape), "views"),
        (lambda x, r: r.missing, "AttributeError"),
    ],
)
def test_differences_are_found(on_device: Any, reason: str | None) -> None:
    op = Pretender(by_name("sin"), on_device)
    sample = op_checks.samples(by_name("sin"), torch.float32)[0]
    sample.input.requires_grad_(False)
    outcome = op_checks.check(op, "forward", sample)
    assert outcome is not None
    if reason is None:
        assert outcome.reason is None
    else:
        assert outcome.reason is not None and re.search(reason, outcome.reason)


class Random(Pretender):
    """The database seeds its random operators before each call; this one is not."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.on_device(x, torch.rand_like(x))


def test_random_operators_are_compared_by_metadata() -> None:
    sample = op_checks.samples(by_name("sin"), torch.float32)[0]
    sample.input.requires_grad_(False)
    # The device draws one number before, so that its bits are not the CPU's.
    draw_first = lambda x, r: torch.rand_like(x) if x.is_neuron else r  # noqa: E731
    outcome = op_checks.check(Random(by_name("sin"), draw_first), "forward", sample)
    assert outcome is not None and outcome.reason is None
    other_type = lambda x, r: r.double() if x.is_neuron else r  # noqa: E731
    outcome = op_checks.check(Random(by_name("sin"), other_type), "forward", sample)
    assert outcome is not None and str(outcome.reason).startswith("dtype")


def test_causes_leave_out_what_differs() -> None:
    one = cause_of("RuntimeError: size 3 of [4, 5] at 0x7f12\nmore")
    assert one == cause_of("RuntimeError: size 17 of [1, 2] at 0x9a")
    assert one != cause_of("TypeError: size 3 of [4, 5] at 0x7f12")


def test_a_lost_process_costs_one_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A module that the workers import: the third check kills its process, once.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('NEURON_DIST_TEST_KILL'):\n"
        "    from neuron_dist.testing import op_checks\n"
        "    check, seen = op_checks.check, []\n"
        "    def deadly(op, variant, sample, device='neuron'):\n"
        "        seen.append(variant)\n"
        "        if len(seen) == 3 and not os.path.exists(os.environ['NEURON_DIST_TEST_KILL']):\n"
        "            open(os.environ['NEURON_DIST_TEST_KILL'], 'w').close()\n"
        "            os.abort()\n"
        "        return check(op, variant, sample, device)\n"
        "    op_checks.check = deadly\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    monkeypatch.setenv("NEURON_DIST_TEST_KILL", str(tmp_path / "killed"))
    variants = frozenset({"forward", "out"})
    (record,) = run_cases([Case("add", "float32")], variants, most=3)
    assert record.failed.total() == 1
    assert record.failures[0]["reason"] == "process killed by SIGABRT"
    assert record.failures[0]["sample"] == 1
    assert record.passed.total() == 5


def test_records_survive_json_and_make_a_page() -> None:
    record = Record("sin", "float32", "strided")
    record.add(0, "forward", None, False)
    record.add(0, "backward", "values", False)
    again = Record.from_json(record.as_json())
    assert again == record
    result = op_docs.summary("ops", [again], 1.0)
    assert (result["passed"], result["failed"], result["percent"]) == (1, 1, 50.0)
    page = op_docs.into_page(
        "<!-- ops -->\nold\n<!-- end -->\n", "ops", op_docs.render("ops", result)
    )
    assert "old" not in page and page.endswith("<!-- end -->\n")
    assert "| `sin` | 1 | float32 |" in page and "**50.0 %**" in page


def test_the_page_has_a_place_for_every_suite() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coverage.md").read_text()
    assert re.findall(r"<!-- (\w+) -->", page)[::2] == [*SUITES, "architectures"]


@pytest.mark.parametrize(
    ("suite", "least"), [("ops", 99.5), ("refs", 99.5), ("extensions", 97.9), ("modules", 99.5), ("optimizers", 99.5)]
)
def test_the_page_is_a_page_of_the_benchmark(suite: str, least: float) -> None:
    page = (Path(__file__).parents[2] / "docs" / "coverage.md").read_text()
    empty = op_docs.render(suite, op_docs.summary(suite, [], 0.0))
    section = page.partition(f"<!-- {suite} -->\n")[2].partition("<!-- end -->")[0]
    assert section.splitlines()[:3] == empty.splitlines()[:3]
    percent = re.search(r"\*\*([\d.]+) %\*\* pass", section)
    assert percent is not None and float(percent[1]) >= least
    assert "not yet understood" not in section


def test_a_page_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no line '<!-- refs -->'"):
        op_docs.into_page("# Page\n", "refs", "text")
