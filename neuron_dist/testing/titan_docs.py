"""The table of benchmarks/titan_matrix.py, and the page docs/titan.md that is made from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

import torch

from neuron_dist.testing.titan_cases import NOT_COMPARED, Case, Outcome, Verdict

__all__ = ["render", "table"]

_Results = Mapping[str, Mapping[str, Outcome]]


def _cells(outcome: Outcome | None) -> tuple[str, str]:
    """First and last loss."""
    if outcome is None or not outcome.losses:
        return "", ""
    losses = outcome.losses
    return f"{losses[min(losses)]:.5f}", f"{losses[max(losses)]:.5f}"


def _steps(outcomes: Mapping[str, Outcome]) -> str:
    steps = [max(o.losses) for o in outcomes.values() if o.losses]
    return str(max(steps)) if steps else ""


def _rows(
    cases: Sequence[Case], results: _Results, verdicts: Mapping[str, Verdict]
) -> list[list[str]]:
    rows = []
    for case in cases:
        outcomes = results.get(case.name, {})
        verdict = verdicts[case.name]
        rows.append(
            [
                case.name,
                str(max(run.ranks for run in case.runs)),
                _steps(outcomes),
                *_cells(outcomes.get("gloo")),
                *_cells(outcomes.get("neuron")),
                ("" if verdict.ok else "FAILED: ") + verdict.text,
            ]
        )
    return rows


def table(cases: Sequence[Case], results: _Results, verdicts: Mapping[str, Verdict]) -> str:
    """For the terminal, with a line of counts."""
    head = ["case", "ranks", "steps", "gloo: 1", "last", "neuron: 1", "last", "result"]
    rows = [head, *_rows(cases, results, verdicts)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)),
                row[-1],
            ]
        )
        for row in rows
    ]
    return "\n".join([*lines, "", _counts(cases, results, verdicts)])


def _counts(cases: Sequence[Case], results: _Results, verdicts: Mapping[str, Verdict]) -> str:
    both = [c for c in cases if not c.gloo and not c.refused]
    compared = [c for c in both if verdicts[c.name].text != NOT_COMPARED]
    agree = sum(verdicts[c.name].ok for c in compared)
    bits = sum(verdicts[c.name].text == "equal" for c in both)
    alone = [c for c in cases if c.gloo]
    refused = [c for c in cases if c.refused]
    return (
        f"{len(cases)} cases: {agree} of {len(both)} that Gloo can run agree ({bits} to the last bit), "
        f"{sum(verdicts[c.name].ok for c in alone)} of {len(alone)} that need an accelerator run, "
        f"{sum(verdicts[c.name].ok for c in refused)} of {len(refused)} that cannot run here are refused"
    )


def render(cases: Sequence[Case], results: _Results, verdicts: Mapping[str, Verdict]) -> str:
    """The page, whole; cases without results are named at its end."""
    missing = [case.name for case in cases if not results.get(case.name)]
    cases = [case for case in cases if results.get(case.name)]
    compared = [c for c in cases if not c.gloo and not c.refused]
    alone = [c for c in cases if c.gloo]
    refused = [c for c in cases if c.refused]
    parts = [
        "# TorchTitan on neuron, case by case",
        "",
        "Written by `python benchmarks/titan_matrix.py --docs`; the cases are in `benchmarks/titan_matrix.yaml`.",
        f"TorchTitan {version('torchtitan')}, torch {torch.__version__.partition('+')[0]}.",
        "",
        _counts(cases, results, verdicts) + ".",
        "",
        "Every run starts from the same weights. The losses of all steps are compared, of the first and the last the",
        "table tells. On up to 2 ranks they must agree to 5 digits, beyond to 3: Gloo and neuron add the contributions",
        "of more than two ranks in different orders. `equal` is equal to the last bit.",
        "",
        "## neuron beside Gloo",
        "",
        "| Case | Ranks | Steps | Gloo: step 1 | last | neuron: step 1 | last | |",
        "| --- | --: | --: | --: | --: | --: | --: | --- |",
        *_markdown(_rows(compared, results, verdicts)),
        "",
        "## What needs an accelerator",
        "",
        "| Case | Ranks | Steps | neuron: step 1 | last | | Why not on Gloo and the CPU |",
        "| --- | --: | --: | --: | --: | --- | --- |",
        *_markdown(
            [
                [*row[:3], *row[5:], case.gloo]
                for case, row in zip(alone, _rows(alone, results, verdicts), strict=True)
            ]
        ),
        "",
        "## What is refused",
        "",
        "These end before anything is trained, with a message that says why:",
        "",
        "| Case | | Message |",
        "| --- | --- | --- |",
        *_markdown(
            [
                [case.name, row[-1], f"... {case.refused} ..."]
                for case, row in zip(refused, _rows(refused, results, verdicts), strict=True)
            ]
        ),
    ]
    if missing:
        parts += ["", f"Not run for this page: {'; '.join(missing)}."]
    return "\n".join(parts) + "\n"


def _markdown(rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
