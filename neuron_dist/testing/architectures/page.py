"""Counts of benchmarks/architectures.py, and its section of docs/coverage.md."""

from __future__ import annotations

from collections import Counter

import torch

from neuron_dist.testing.architectures.check import OUTCOMES, Row

__all__ = ["render", "summary"]


def summary(rows: list[Row]) -> str:
    """Markdown: how many types have which outcome, and every one that is not equal, with the reason."""
    counts = Counter(row.outcome for row in rows)
    out = ["| outcome | meaning | types |", "| --- | --- | ---: |"]
    out += [f"| {name} | {meaning} | {counts[name]} |" for name, meaning in OUTCOMES.items()]
    rest = sorted((row for row in rows if row.outcome != "equal"), key=_order)
    if rest:
        out += ["", "| type | outcome | why |", "| --- | --- | --- |"]
    out += [f"| `{row.model}` | {row.outcome} | {_why(row)} |" for row in rest]
    return "\n".join(out)


def _order(row: Row) -> tuple[int, str]:
    return list(OUTCOMES).index(row.outcome), row.model


def _why(row: Row) -> str:
    parts = ", ".join(f"{part} {verdict}" for part, verdict in row.parts.items())
    return (row.why or parts).replace("|", "/").replace("<", "&lt;")


def render(rows: list[Row], total: int) -> str:
    """The section, from its heading on; ``total`` is how many types transformers has."""
    import transformers

    modalities = Counter(_fed(row) for row in rows if row.outcome in ("equal", "close"))
    fed = "\n".join(f"| {name} | {count} |" for name, count in modalities.most_common())
    return f"""## Architectures of transformers

Each model type of transformers' `AutoModel`, tiny and with random weights: forward, backward and an SGD step on
`neuron` against the CPU. Outputs, gradients and new weights are compared bit for bit. This section is written by

    python benchmarks/architectures.py --json architectures.jsonl --jobs 2 --docs

`not run` says nothing about the device: the CPU itself did not run the model on a configuration and inputs made here.

transformers {transformers.__version__}, torch {torch.__version__}: {len(rows)} of {total} types have been run.

{summary(rows)}

What the models were given that ran:

| inputs | types |
| --- | ---: |
{fed}
"""


def _fed(row: Row) -> str:
    """The kinds of input that a model was given, in words."""
    words = {
        "input_ids": "text",
        "pixel_values": "images",
        "pixel_values_videos": "videos",
        "input_features": "sound",
        "input_values": "sound",
        "past_values": "time series",
    }
    return " and ".join(dict.fromkeys(words[n] for n in row.inputs if n in words)) or "other"
