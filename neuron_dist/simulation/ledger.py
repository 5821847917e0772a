"""The figures of a run without a trace: what the native core's ledgers counted, one a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collectives.topology import Cluster
from neuron_dist.simulation.figures import RankStep, RunFigures, Traffic

__all__ = ["figures_of"]


def figures_of(
    ledgers: Sequence[Mapping[str, Any]],
    cluster: Cluster,
    *,
    reports: int = 0,
    sites: int = 0,
    trace: str = "",
) -> RunFigures:
    """The figures of the ranks whose ``ledgers`` (``neuron_dist._C._figures()``) are given.

    Only steps that all of them still know count: a ledger keeps the newest 512. Traffic is of the whole run, each
    collective counted by its group's first rank, each message by its sender. ``reports`` and ``sites`` are those of
    the fidelity rules, ``trace`` the folder of the trace if there is one.
    """
    known: dict[int, int] = {}
    for ledger in ledgers:
        for step in ledger["steps"]:
            known[step["step"]] = known.get(step["step"], 0) + 1
    steps = [
        RankStep(rank=ledger["rank"], **step)
        for ledger in ledgers
        for step in ledger["steps"]
        if known[step["step"]] == len(ledgers)
    ]
    present = {ledger["rank"] for ledger in ledgers}
    traffic = []
    for ledger in ledgers:
        for row in ledger["traffic"]:
            ranks, root = tuple(row["ranks"]), row["root"]
            if row["op"] == "send":
                ranks, root = (ledger["rank"], ranks[root]), 0
            elif ledger["rank"] != next(r for r in ranks if r in present):
                continue
            traffic.append(
                Traffic(
                    ranks, row["group"], row["op"], row["algorithm"], max(root, 0), row["count"], row["bytes"],
                    row["time_ns"],
                )
            )  # fmt: skip
    return RunFigures(
        cluster=cluster,
        world_size=len(ledgers),
        ranks=tuple(steps),
        traffic=tuple(traffic),
        traffic_ns=max(
            (step["end_ns"] for ledger in ledgers for step in ledger["steps"]), default=0
        ),
        traffic_steps=0,
        hbm_bytes=cluster.hbm_bytes_per_core,
        reports=reports,
        sites=sites,
        trace=trace,
    )
