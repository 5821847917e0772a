"""What the real TorchNeuron would refuse, said here and not on the bill.

The simulated device and backend can do more than the hardware. A fidelity profile tells the difference: rules, as
data, say which calls of ``torch.distributed`` TorchNeuron refuses on which product, and each place in a program that
makes such a call is reported once (``NEURON_DIST_FIDELITY=warn``, which is what holds unless set), or the call raises
(``strict``), or nothing is looked at (``off``).

    rules/*.yaml     the rules
    vocabulary.py    the words that rules are written in: ops, features of a call, effects, kinds of evidence
    rule.py          a rule and its conditions
    loading.py       YAML to rules, with errors that name the file, the rule and the key
    call.py          one call, and what of it rules can ask for
    placement.py     where a group's ranks stand on the cluster
    profile.py       the rules of one release on one cluster: which of them a call violates
    site.py          the line of the user's program that makes the call
    reporting.py     one report for each rule and site
    hook.py          what the native core calls for collectives
    operators.py     what it calls for operators
    environment.py   NEURON_DIST_FIDELITY and NEURON_DIST_FIDELITY_RELEASE
    page.py          docs/fidelity.md, made from the rules

Importing this package loads no rule: PyYAML is imported when the first call is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuron_dist.fidelity.errors import FidelityError, FidelityWarning

if TYPE_CHECKING:
    from neuron_dist.fidelity.rule import Rule

__all__ = ["FidelityError", "FidelityWarning", "rules"]


def rules(release: str | None = None) -> tuple[Rule, ...]:
    """The rules of a release of TorchNeuron (``"2.13.3"``), for all products, in the order of docs/fidelity.md.

    Without ``release`` those of ``NEURON_DIST_FIDELITY_RELEASE``, or of the release that fits the installed torch.
    Raises ``ValueError`` for a release that is not known.
    """
    from neuron_dist.fidelity.environment import checked_release, release_from_environment
    from neuron_dist.fidelity.loading import all_rules

    wanted = release_from_environment() if release is None else checked_release("release", release)
    return tuple(rule for rule in all_rules() if wanted in rule.releases)
