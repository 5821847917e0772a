"""KangaRing: a ring over half of the ranks; each carries its partners in the pouch.

        chip a        chip b         The ranks of a chip form teams (pairs; of 4 at LNC 1). In each channel one
      [0* 1 ]  -->  [4* 5 ]          rank of a team, the primary (*), is on the ring, and which one alternates
      [2* 3 ]       [6* 7 ]          between the channels, so the hops halve.

reduce_scatter: the primary receives a partial sum, adds its own and its partners' chunk in the same step, and
sends it on; the last hop goes straight to the owner. all_gather: what the primary receives it writes twice, to
the next primary and to its partners. Needs all ranks of each chip in the group.

Cost, T teams of m ranks, segments of C bytes, h channels: T steps a half; (n - m) C / h on each directed link.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.base import Half, Halves
from collectives.group import Group
from collectives.schedule import Rows

__all__ = ["KANGARING"]


def _teams(group: Group, channel: int) -> np.ndarray:
    """[teams, members] in ring order; the first member is the primary."""
    k = group.ranks_per_chip
    m = max(2, k // 2)
    turn = -1 if channel % 2 else 1
    chips = np.array([group.members[c] for c in group.chip_cycles[channel]])
    teams = chips.reshape(len(chips), k // m, m)[:, ::turn].reshape(-1, m)
    return np.roll(teams, -(channel % m), axis=1)


def _reduce_scatter(group: Group) -> Half:
    h, parts = len(group.chip_cycles), []
    for channel in range(h):
        team = _teams(group, channel)
        T, m = team.shape
        lead = team[:, 0]

        def into(step, source, target, owner, *, c=channel):
            parts.append(Rows.of(step, source, target, owner * h + c, reduce=True, channel=c))

        place, t = np.arange(T), np.arange(max(T - 1, 0))[:, None]
        owner = team[(place - 1 - t) % T]  # [step, team, chunk]: what a team sends on
        ahead, carried, mates = np.roll(lead, -1), owner[:-1], np.roll(team, -1, axis=0)[:, 1:]
        if T > 1:  # before the first hop: the partners' share of the chunks that are sent first
            into(0, team[:, None, 1:], lead[:, None, None], owner[0, :, :, None])
            step = 1 + t[:-1, :, None]
            into(step, lead[:, None], ahead[:, None], carried)
            into(step[..., None], mates[:, None, :], ahead[:, None, None], carried[..., None])
            into(T - 1, lead[:, None], owner[-1], owner[-1])
        for i in range(m):  # the last hop's step: the owner's partners
            for j in range(m):
                if i != j:
                    into(max(T - 1, 0), team[:, j], team[:, i], team[:, i])
    return Half(Rows.join(parts), max(T, 1), h)


def _all_gather(group: Group) -> Half:
    h, parts = len(group.chip_cycles), []
    for channel in range(h):
        team = _teams(group, channel)
        T, m = team.shape
        lead = team[:, 0]

        def send(step, source, target, owner, *, c=channel):
            parts.append(Rows.of(step, source, target, owner * h + c, channel=c))

        place, t = np.arange(T), np.arange(max(T - 1, 0))[:, None]
        for i in range(m):
            for j in range(m):
                if i != j:
                    send(0, team[:, i], team[:, j], team[:, i])
        if T > 1:
            owner = team[(place - t) % T]  # [step, team, chunk]: what a team sends on
            ahead, arrived = np.roll(lead, -1)[:, None], team[(place - 1 - t) % T]
            send(0, owner[0], ahead, owner[0])
            send(t[1:, :, None], lead[:, None], ahead, owner[1:])
            send(t[..., None, None] + 1, lead[:, None, None], team[:, None, 1:], arrived[..., None])
    return Half(Rows.join(parts), max(T, 1), h)


def _why_not(group: Group) -> str:
    if not group.fills_chips:
        return "the group does not hold all ranks of each of its chips"
    if group.ranks_per_chip < 2:
        return "there is one rank a chip, so nobody to carry"
    return "" if group.ranks_per_chip % 2 == 0 else "a chip's ranks do not pair"


KANGARING = Halves("kangaring", _reduce_scatter, _all_gather, _why_not)
