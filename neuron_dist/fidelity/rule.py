"""A rule: what TorchNeuron refuses, when, with which evidence, and what to do instead."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_dist.fidelity.call import FEATURES, Call, Value
from neuron_dist.fidelity.placement import Placement
from neuron_dist.fidelity.vocabulary import REFUSES

__all__ = ["FIELDS", "Condition", "Evidence", "Rule"]

FIELDS = ("op", "operator", "reduction", "dtype", "group_size", "world_size", "first_rank", "ranks")
"""What the texts of a rule may name in braces."""


@dataclass(frozen=True)
class Condition:
    """On one feature; all parts that are given must hold."""

    feature: str
    among: frozenset[Value] | None = None
    none_of: frozenset[Value] = frozenset()
    not_multiple_of: int | None = None
    above: int | None = None

    def holds(self, call: Call, placement: Placement) -> bool:
        value = FEATURES[self.feature].of(call, placement)
        if (self.among is not None and value not in self.among) or value in self.none_of:
            return False
        if self.not_multiple_of is not None and int(value) % self.not_multiple_of == 0:
            return False
        return self.above is None or int(value) > self.above

    def __str__(self) -> str:
        parts = []
        if self.among is not None:
            parts.append(_any_of(self.among))
        if self.none_of:
            parts.append(f"not {_any_of(self.none_of)}")
        if self.not_multiple_of is not None:
            parts.append(f"not a multiple of {self.not_multiple_of}")
        if self.above is not None:
            parts.append(f"above {self.above}")
        return f"{self.feature} {' and '.join(parts)}"


@dataclass(frozen=True)
class Evidence:
    """One source of a rule."""

    sure: str
    """How sure it is: a key of :data:`neuron_dist.fidelity.vocabulary.KINDS_OF_EVIDENCE`."""
    source: str


@dataclass(frozen=True)
class Rule:
    """See ``rules/*.yaml``; :mod:`neuron_dist.fidelity.loading` checks and builds it."""

    id: str
    section: str
    """Title of its file."""
    title: str
    ops: tuple[str, ...]
    conditions: tuple[Condition, ...]
    """All must hold; without any, every call of ``ops`` violates the rule."""
    effect: str
    what: str
    """What is refused; with :data:`FIELDS` in braces."""
    there: str
    """What happens there: the exception or its text; may be empty."""
    instead: str
    """What to do; with :data:`FIELDS` in braces."""
    why: str
    """Of a rule that says "may refuse": what is uncertain."""
    evidence: tuple[Evidence, ...]
    families: tuple[str, ...]
    """Of products; empty for all."""
    lnc: tuple[int, ...]
    releases: tuple[str, ...]

    @property
    def raises_in_strict(self) -> bool:
        return self.effect == REFUSES

    @property
    def sure(self) -> tuple[str, ...]:
        """The kinds of evidence, each once."""
        return tuple(dict.fromkeys(e.sure for e in self.evidence))

    def applies_to(self, release: str, family: str, lnc: int) -> bool:
        """Whether it says anything of a cluster."""
        of_family = not self.families or family in self.families
        return of_family and release in self.releases and lnc in self.lnc

    def violated_by(self, call: Call, placement: Placement) -> bool:
        """Whether the conditions hold; that of the op is the caller's."""
        return all(condition.holds(call, placement) for condition in self.conditions)

    def message(self, call: Call, release: str, product: str) -> str:
        """The report of this rule for a call that violates it, in one line."""
        fields = {
            "op": call.op,
            "operator": call.operator,
            "reduction": call.reduction,
            "dtype": call.dtype,
            "group_size": len(call.group_ranks),
            "world_size": call.world_size,
            "first_rank": call.group_ranks[0],
            "ranks": _shortened(call.group_ranks),
        }
        what, there, instead = (t.format_map(fields) for t in (self.what, self.there, self.instead))
        return (
            f"fidelity: TorchNeuron {release} on {product} {self.effect} {what}"
            f"{f' ({there})' if there else ''}; {instead}. [rule {self.id}; docs/fidelity.md#{self.id}]"
        )


def _any_of(values: frozenset[Value]) -> str:
    ordered = sorted(values, key=lambda v: (isinstance(v, str), v))
    words = [str(v).lower() if isinstance(v, bool) else str(v) for v in ordered]
    return " or ".join(word or "nothing" for word in words)


def _shortened(ranks: tuple[int, ...]) -> str:
    shown = [str(r) for r in ranks]
    if len(shown) > 8:
        shown = [*shown[:3], "...", shown[-1]]
    return f"[{', '.join(shown)}]"
