"""The rules of one release on one cluster."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.topology import Cluster
from neuron_dist.fidelity.call import Call
from neuron_dist.fidelity.environment import checked_mode, checked_release
from neuron_dist.fidelity.loading import all_rules
from neuron_dist.fidelity.placement import Placement, placement
from neuron_dist.fidelity.rule import Rule
from neuron_dist.fidelity.vocabulary import OPS, near, one_of

__all__ = ["Profile"]


class Profile:
    """Judges calls. Its verdicts depend on the arguments only; it keeps the shapes of the groups that it has seen."""

    def __init__(
        self, mode: str, release: str, cluster: Cluster, rules: Sequence[Rule] | None = None
    ) -> None:
        """``cluster`` must have a core for every rank; ``rules`` are the package's unless given.

        Raises ``ValueError`` for a mode or release that is not known.
        """
        self.mode = checked_mode("mode", mode)
        self.release = checked_release("release", release)
        self.cluster = cluster
        self.rules = tuple(
            rule
            for rule in (all_rules() if rules is None else rules)
            if rule.applies_to(release, cluster.family, cluster.lnc)
        )
        """Those that apply to this release and cluster."""
        self._by_op = {op: [r for r in self.rules if op in r.ops] for op in OPS}
        self._placements: dict[tuple[int, ...], Placement] = {}

    def violations(self, call: Call) -> tuple[Rule, ...]:
        """The rules that the call violates, in the order of docs/fidelity.md.

        Raises ``ValueError`` for an op that is not known, and ``ClusterError`` for a rank without a core.
        """
        if call.op not in self._by_op:
            raise ValueError(f"op is {call.op!r}, expected {one_of(OPS)}{near(call.op, OPS)}")
        where = self._placements.get(call.group_ranks)
        if where is None:
            where = self._placements[call.group_ranks] = placement(call.group_ranks, self.cluster)
        return tuple(rule for rule in self._by_op[call.op] if rule.violated_by(call, where))

    def message(self, rule: Rule, call: Call) -> str:
        """The report of a rule that the call violates, in one line."""
        return rule.message(call, self.release, self.cluster.product)

    def found(self, call: Call) -> list[tuple[Rule, str]]:
        """The rules that the call violates, each with its report."""
        return [(rule, self.message(rule, call)) for rule in self.violations(call)]
