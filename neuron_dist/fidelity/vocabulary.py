"""The words that rules are written in. A rule that uses another is refused when it is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CALLS",
    "COLLECTIVES",
    "COMPILE",
    "EFFECTS",
    "FALLS_BACK",
    "FAMILIES",
    "KINDS_OF_EVIDENCE",
    "MAY_REFUSE",
    "MESSAGES",
    "MODES",
    "NARROWS",
    "OPERATOR",
    "OPS",
    "OP_SETS",
    "REDUCTIONS",
    "REFUSES",
    "RELEASES",
    "near",
    "one_of",
]

MODES = ("off", "warn", "strict")
RELEASES = ("2.13.3", "2.14.3")
"""Of TorchNeuron, that is of the package torch-neuronx: those of Neuron 2.33, for torch 2.13 and 2.14."""
FAMILIES = ("trn1", "trn1n", "trn2", "trn2u", "trn3")
"""``family`` of the products."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
MESSAGES = ("send", "recv")
CALLS = (
    "new_group",
    "split_group",
    "monitored_barrier",
    "get_sequence_number",
    "register_on_completion_hook",
    "time_estimator",
)
"""Calls that are no collective: of the process group, or its creation (``new_group``, also of the default group)."""
OPERATOR = "operator"
"""An operator on tensors of the device; ``operator`` of the call says which."""
COMPILE = "compile"
"""One graph of ``torch.compile``."""
OPS = (*COLLECTIVES, *MESSAGES, *CALLS, OPERATOR, COMPILE)
"""Collectives and messages have the native core's names, whatever the Python function is called."""
OP_SETS = {
    "collectives": COLLECTIVES,
    "tensor ops": (*(op for op in COLLECTIVES if op != "barrier"), *MESSAGES),
}
"""Names for several ops at once."""

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

REFUSES = "refuses"
MAY_REFUSE = "may refuse"
NARROWS = "narrows"
FALLS_BACK = "falls back on"
EFFECTS = (REFUSES, MAY_REFUSE, NARROWS, FALLS_BACK)
"""``may refuse``: sources disagree or do not say it of this very case. ``narrows``: it computes, with fewer bits.
``falls back on``: the CPU does it. Strict mode raises for ``refuses`` alone; all are reported."""

KINDS_OF_EVIDENCE = {
    "documented": "AWS's documentation, public headers or public libraries",
    "pre-release": "how a pre-release of TorchNeuron of April 2026 behaved: exact for then, no proof for today",
    "field report": "what users reported of Betas 2 to 6",
}


def near(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing. What begins with ``word`` is nearest."""
    text, words = str(word), list(known)
    found = [w for w in words if text and w.startswith(text)]
    found = found or difflib.get_close_matches(text, words, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def one_of(words: Iterable[str]) -> str:
    """``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
