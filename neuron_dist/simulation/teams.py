"""Process groups as all of their ranks know them.

A rank numbers its groups for itself, so groups are matched by name and ranks; of several with the same (made one
after the other) the first of one rank is the first of every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neuron_dist.simulation.trace import RankTrace, TraceError

__all__ = ["Team", "Teams"]


@dataclass(frozen=True)
class Team:
    """A process group, the same for all of its ranks."""

    number: int
    """Among the teams of a run, in the order in which the traces name them."""
    label: str
    """The name that people read."""
    ranks: tuple[int, ...]
    """Global ranks, in group order."""


@dataclass
class Teams:
    """The teams of a run; filled trace by trace."""

    known: list[Team] = field(default_factory=list)
    _by_key: dict[tuple[str, str, tuple[int, ...], int], Team] = field(default_factory=dict)

    def of(self, trace: RankTrace) -> dict[int, Team]:
        """The teams of one rank, by the numbers that its trace gives them.

        Raises :class:`TraceError` for a group that the rank is not in.
        """
        found: dict[int, Team] = {}
        times: dict[tuple[str, tuple[int, ...]], int] = {}
        for number, group in sorted(trace.groups.items()):
            if trace.rank not in group.ranks:
                raise TraceError(
                    f"{trace.path}: group {group.label!r} has ranks {list(group.ranks)}, expected rank {trace.rank} among them"
                )
            nth = times[group.name, group.ranks] = times.get((group.name, group.ranks), -1) + 1
            key = (group.name, group.desc, group.ranks, nth)
            if key not in self._by_key:
                team = Team(len(self.known), group.label, group.ranks)
                self._by_key[key] = team
                self.known.append(team)
            found[number] = self._by_key[key]
        return found
