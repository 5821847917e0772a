"""The price of a schedule on a cluster: every transfer routed, links shared inside a step, ranks that wait.

In each step the transfers between one pair of ranks in one channel are one flow. A flow takes

    alpha + beta      alpha: the latency of its route
                      beta:  max over its links of (bytes of all the step's flows on the link) / bandwidth

and begins when its sender has received what earlier steps sent it and has sent what earlier steps gave it to
send; only alpha, not beta, overlaps with the sender's next flow. The last arrival, and a constant a collective
(``base_ns``), is the time. So a ring with one slow hop pays its latency once a lap and its bandwidth in each step. Channels keep
their own pace; where a stage with other channels begins, each rank waits for all of its own.

An EFA into which several others send in one step loses ``efa_incast_per_peer`` of its bandwidth for each beyond
the first, up to ``INCAST_PEERS``. Additions are taken as overlapped with the transfers, and local copies as free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collectives.group import Group
from collectives.schedule import Schedule, chunk_bounds
from collectives.topology import Topology

__all__ = ["Price", "Pricer", "price"]

INCAST_PEERS = 10
"""Senders beyond the first after which more do no more harm: an assumption, like the loss itself."""


@dataclass(frozen=True, eq=False)
class Price:
    """What a schedule costs for one size."""

    time_ns: float
    step_ns: np.ndarray
    """When the last transfer of each step arrives, from the start."""
    bytes_by_link: np.ndarray
    """[links of the topology] bytes over each directed link."""
    sent_bytes: np.ndarray
    """[ranks] bytes that each rank sends to others."""
    topology: Topology

    @property
    def busiest_link(self) -> str:
        """Name of the link that is busy longest; '' if nothing moves."""
        busy = self.bytes_by_link / self.topology.link_Bps
        return self.topology.link_names[int(busy.argmax())] if busy.any() else ""

    @property
    def bytes_per_link(self) -> dict[str, int]:
        """Bytes of each directed link in use, by its name."""
        used = np.flatnonzero(self.bytes_by_link)
        return {self.topology.link_names[i]: int(self.bytes_by_link[i]) for i in used}


class Pricer:
    """Prices one schedule on one group for any size; the routes are looked up once."""

    def __init__(self, schedule: Schedule, group: Group) -> None:
        """Raises ValueError if the schedule is for another number of ranks."""
        if schedule.ranks != group.size:
            raise ValueError(f"{schedule} cannot run on a group of {group.size}")
        self.schedule, self.group, self.topology = schedule, group, group.topology
        rows, n = schedule.rows, schedule.ranks
        self.moving = np.flatnonzero(rows.src != rows.dst)
        columns = (rows.step, rows.channel, rows.src, rows.dst)
        step, channel, src, dst = (c[self.moving].astype(np.int64) for c in columns)
        self.channels = int(channel.max(initial=0)) + 1
        key = ((step * self.channels + channel) * n + src) * n + dst
        flows, self.flow_of_row = np.unique(key, return_inverse=True)
        step, pair = np.divmod(flows, self.channels * n * n)
        channel, pair = np.divmod(pair, n * n)
        self.src, self.dst = np.divmod(pair, n)
        self.src_clock, self.dst_clock = channel * n + self.src, channel * n + self.dst
        cut = np.flatnonzero(step[1:] != step[:-1]) + 1
        self.cuts = np.concatenate([[0], cut, [len(step)]]) if len(step) else np.zeros(1, np.int64)
        self.regroups = np.zeros(len(self.cuts) - 1, bool)
        """Whether a step's channels are others than those of the step before."""
        for extreme in (np.minimum, np.maximum) if len(step) else ():
            ends = extreme.reduceat(channel, self.cuts[:-1])
            self.regroups[1:] |= ends[1:] != ends[:-1]
        self.step = np.zeros(len(step), np.int64)
        self.step[cut] = 1
        self.step = np.cumsum(self.step)
        core_a, core_b = group.cores[self.src], group.cores[self.dst]
        table = self.topology.route_table(core_a, core_b)
        self.alpha_ns = self.topology.latency_table(core_a, core_b)
        self.links = len(self.topology.link_Bps)
        self.entry_flow, column = np.nonzero(table >= 0)
        self.entry_link = table[self.entry_flow, column]
        self.entry_key = self.step[self.entry_flow] * self.links + self.entry_link

    @cached_property
    def _entry_ns_per_byte(self) -> np.ndarray:
        per_byte = 1e9 / self.topology.link_Bps[self.entry_link]
        incast = self.group.cluster.parameters["efa_incast_per_peer"]
        per_chip = self.group.cluster.logical_cores_per_chip * self.topology.chips
        crosses = self.group.cores[self.src] // per_chip != self.group.cores[self.dst] // per_chip
        entering = np.flatnonzero(crosses[self.entry_flow])
        if incast and len(entering):
            out, into = entering[::2], entering[1::2]  # a crossing flow's two links, in order
            pairs = np.unique(self.entry_key[into] * self.links + self.entry_link[out])
            keys, senders = np.unique(pairs // self.links, return_counts=True)
            senders = senders[np.searchsorted(keys, self.entry_key[into])]
            per_byte[into] *= 1 + incast * np.minimum(senders - 1, INCAST_PEERS)
        return per_byte

    def price(self, nbytes: int, itemsize: int = 1, sizes: np.ndarray | None = None) -> Price:
        """The price for ``nbytes`` bytes, the whole collective as nccom-test counts it: the tensor; for
        reduce_scatter the input, for all_gather the output, for all_to_all the input of one rank; for gather and
        scatter all of the root's.

        ``sizes`` gives each chunk's bytes instead (all_to_allv and the like).
        """
        schedule, rows = self.schedule, self.schedule.rows
        if sizes is None:
            segments = schedule.ranks if schedule.op == "all_to_all" else schedule.segments
            bounds = chunk_bounds(schedule, nbytes // itemsize // segments)
            sizes = np.diff(bounds) * itemsize
        ends = np.concatenate([[0], np.cumsum(np.asarray(sizes)[schedule.slot_chunk])])
        begin = rows.src_slot[self.moving]
        moved = ends[begin + rows.count[self.moving]] - ends[begin]
        flow_bytes = np.bincount(self.flow_of_row, moved, len(self.src))
        entry_bytes = flow_bytes[self.entry_flow]
        steps, clocks = len(self.cuts) - 1, self.channels * schedule.ranks
        load = np.bincount(self.entry_key, entry_bytes, steps * self.links)
        beta = np.zeros(len(self.src))
        np.maximum.at(beta, self.entry_flow, load[self.entry_key] * self._entry_ns_per_byte)
        received, sent, step_ns = np.zeros(clocks), np.zeros(clocks), np.zeros(steps)
        for i in range(steps):
            if self.regroups[i]:
                for clock in (received, sent):
                    clock.reshape(self.channels, -1)[:] = clock.reshape(self.channels, -1).max(axis=0)
            part = slice(self.cuts[i], self.cuts[i + 1])
            src, dst = self.src_clock[part], self.dst_clock[part]
            done = np.maximum(received[src], sent[src]) + beta[part]
            arrived = done + self.alpha_ns[part]
            np.maximum.at(sent, src, done)
            np.maximum.at(received, dst, arrived)
            step_ns[i] = arrived.max()
        base = self.group.cluster.parameters["base_ns"]
        return Price(
            time_ns=base + float(max(received.max(), sent.max())),
            step_ns=base + step_ns,
            bytes_by_link=np.rint(load.reshape(steps, self.links).sum(axis=0)).astype(np.int64),
            sent_bytes=np.rint(np.bincount(self.src, flow_bytes, schedule.ranks)).astype(np.int64),
            topology=self.topology,
        )


def price(schedule: Schedule, group: Group, nbytes: int, itemsize: int = 1) -> Price:
    """The price of a schedule on a group's cores, see :meth:`Pricer.price`."""
    return Pricer(schedule, group).price(nbytes, itemsize)
