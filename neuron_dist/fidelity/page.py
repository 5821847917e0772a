"""docs/fidelity.md, made from the rules: ``python -m neuron_dist.fidelity.page docs``."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from neuron_dist.fidelity.call import FEATURES
from neuron_dist.fidelity.loading import all_rules
from neuron_dist.fidelity.rule import Rule
from neuron_dist.fidelity.vocabulary import (
    CALLS,
    COLLECTIVES,
    COMPILE,
    KINDS_OF_EVIDENCE,
    MESSAGES,
    OPERATOR,
    RELEASES,
)

__all__ = ["NAME", "page"]

NAME = "fidelity.md"

INTRODUCTION = """\
# Fidelity

<!-- made by `python -m neuron_dist.fidelity.page docs` from neuron_dist/fidelity/rules; do not edit -->

The simulated backend does more than the hardware: any group, any dtype, any split. Rules say which calls of
`torch.distributed` and which operators the real TorchNeuron refuses, or computes otherwise, and each line of a program
that makes such a call is reported once:

```text
train.py:42: FidelityWarning: fidelity: TorchNeuron 2.13.3 on trn2.48xlarge refuses all_to_all with uneven splits
(NotImplementedError "Only even split sizes are supported"); pad to equal splits. [rule uneven-all-to-all; ...]
```

| variable | values |
| --- | --- |
| `NEURON_DIST_FIDELITY` | `warn` (unless set); `strict`: the call raises `FidelityError` on every rank that makes it, before data move; `off` |
| `NEURON_DIST_FIDELITY_RELEASE` | the release of TorchNeuron, RELEASES; unless set 2.13.3 for torch 2.13, 2.14.3 for later ones |
| `NEURON_DIST_CLUSTER`, `NEURON_LOGICAL_NC_CONFIG` | the product and its logical cores: rank r is logical core r |

Reports are Python warnings of the category `neuron_dist.fidelity.FidelityWarning`, so Python's filters apply:
`-W error::neuron_dist.fidelity.FidelityWarning`, or in pytest

```toml
filterwarnings = ["ignore::neuron_dist.fidelity.FidelityWarning"]
```

The line is the innermost one of the calling thread that is not in torch, neuron_dist or the standard library. One rank
prints it, the first to come. A rule either **refuses**, or **may refuse**: there sources disagree or do not speak of
the very case, so it is reported in every mode and strict mode does not raise. Nor does it where TorchNeuron **narrows**
a dtype or **falls back on** the CPU. An operator is reported at the first line that calls it, once for each of its
rules; int64 results are looked at for values beyond 32 bits until one was found.

`neuron-dist fidelity` prints the rules that hold for a product and release, `neuron-dist fidelity RULE` one of them,
`--json` all that is known; in Python `neuron_dist.fidelity.rules("2.13.3")`.

## How sure

TorchNeuron has no published table of what it supports. Each rule names its sources and what they are:

"""

LIMITS = """\
## What no rule says

- `int64` and `uint64` in collectives: the sources list floats and integers of up to 32 bits as working and do not list
  64-bit integers as refused. Object collectives, which mostly work, exchange int64 sizes.
- complex tensors: unsupported or on the CPU in the pre-release; TorchNeuron for torch 2.13 has a setting, on unless
  changed, that decomposes them in compiled graphs.
- `memory_format=torch.channels_last` of `clone` and `contiguous`: new tensors (`empty_like`, ...) are looked at.
- indexing with a boolean mask, which the operator does not tell from indexing with numbers.
- `bool`, and integers that are unsigned with 16 or 32 bits: the sources do not name them.
- `scatter_object_list` (had errors in the pre-release) and `send_recv_object` (not supported): to a backend they are
  broadcasts and messages of bytes.
- `comm_split_count` and NaN checks, which TorchNeuron lacks, have no call that reaches this backend either.
- The number of replica groups in one compiled graph (16 since Neuron 2.32), timeouts and memory.
- Which other operators TorchNeuron has: there is no published table.
- The shape of a group on Trn3, of an UltraServer, and of what is neither adjacent nor evenly strided: nothing is
  published. On several instances the shapes are judged on each instance.

## Add a rule

A file in `neuron_dist/fidelity/rules` is a title and a list of rules. `ops` is a list of

- collectives: COLLECTIVES
- messages: MESSAGES
- other calls: CALLS
- OPERATOR: an operator on tensors of the device; GRAPH: a graph of `torch.compile`

or `collectives` for all of these, or `tensor ops` for collectives and messages without `barrier`. All conditions of
`when` must hold: a value, a list of values, or `not`, `not_multiple_of` and `above`, each on one of these features:

"""

AFTER_FEATURES = """
`families`, `lnc` and `releases` limit a rule to products and releases. `there` says what happens, `why` what is
uncertain where it "may refuse". Texts may name `{op}`, `{operator}`, `{reduction}`, `{dtype}`, `{group_size}`,
`{world_size}`, `{first_rank}` and `{ranks}`. Add a case that violates the rule and one beside it that does not to
`tests/fidelity/cases.py`, and make this page again.
"""


def page() -> str:
    """The content of docs/fidelity.md."""
    lines = [
        INTRODUCTION.replace("RELEASES", " or ".join(f"`{r}`" for r in RELEASES)).rstrip("\n"),
        "",
    ]
    lines += [f"- **{kind}**: {meaning}." for kind, meaning in KINDS_OF_EVIDENCE.items()]
    rules = all_rules()
    for section, group in groupby(rules, key=lambda rule: rule.section):
        lines += ["", f"## {section}", ""]
        lines.append("\n\n".join(_entry(rule) for rule in group))
    limits = LIMITS
    for name, ops in (
        ("COLLECTIVES", COLLECTIVES),
        ("MESSAGES", MESSAGES),
        ("CALLS", CALLS),
        ("OPERATOR", (OPERATOR,)),
        ("GRAPH", (COMPILE,)),
    ):
        limits = limits.replace(name, ", ".join(f"`{op}`" for op in ops))
    lines += ["", limits.rstrip("\n"), ""]
    lines += ["| feature | of a call or its group |", "| --- | --- |"]
    lines += [f"| `{name}` | {feature.meaning} |" for name, feature in FEATURES.items()]
    return "\n".join(lines) + "\n" + AFTER_FEATURES


def _entry(rule: Rule) -> str:
    limits = []
    if rule.families:
        limits.append("on " + ", ".join(rule.families))
    if len(rule.lnc) == 1:
        limits.append(f"at LNC {rule.lnc[0]}")
    if rule.releases != RELEASES:
        limits.append("in " + ", ".join(rule.releases))
    where = f" ({'; '.join(limits)})" if limits else ""
    lines = [f"### {rule.id}", "", f"TorchNeuron **{rule.effect}** {rule.title}{where}."]
    if rule.there:
        lines[-1] += f" There: {rule.there}."
    if rule.why:
        lines[-1] += f" {rule.why}"
    lines += ["", f"- Instead: {_plain(rule.instead)}."]
    if rule.conditions:
        lines.append(f"- When: {'; '.join(map(str, rule.conditions))}.")
    lines += [f"- {evidence.sure.capitalize()}: {evidence.source}." for evidence in rule.evidence]
    return "\n".join(lines)


def _plain(template: str) -> str:
    """A text with names in braces, for reading: ``{group_size}`` becomes ``group_size``."""
    return template.replace("{", "").replace("}", "")


def main(folder: Path) -> None:
    """Writes the page."""
    (folder / NAME).write_text(page())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
