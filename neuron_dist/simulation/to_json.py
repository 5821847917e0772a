"""The numbers of an analysis as plain data, for ``neuron-dist report --json``; units are in the names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from neuron_dist.simulation.analysis import Analysis
from neuron_dist.simulation.figures import StepFigures

__all__ = ["as_dict"]


def as_dict(analysis: Analysis, contended: Analysis | None = None) -> dict[str, Any]:
    """Everything that the report shows, but for pictures and what is assumed; every time is simulated.

    ``contended``: the same of the traces replayed with links shared.
    """
    figures, links, hbm = analysis.figures, analysis.links, analysis.hbm
    assert figures.overall
    found: dict[str, Any] = {
        "cluster": str(figures.cluster),
        "ranks": figures.world_size,
        "trace": figures.trace,
        "counted_steps": list(figures.counted),
        "notes": analysis.notes,
        "overall": _step(figures.overall),
        "steps": [_step(step) for step in figures.steps.values()],
        "collectives": [
            {**asdict(c), "algbw_Bps": c.algbw_Bps, "busbw_Bps": c.busbw_Bps}
            for c in analysis.collectives
        ],
        "axes": [asdict(a) for a in analysis.axes],
        "rank_means": [asdict(r) for r in analysis.ranks],
        "critical_rank": analysis.critical_rank,
        "hot_link": links.name(links.hot) if links.hot is not None else None,
        "links": [
            {
                "link": links.name(i),
                "nbytes": int(links.nbytes[i]),
                "busy_ns": float(links.busy_ns[i]),
                "busy_share": float(links.shares[i]),
            }
            for i in links.busiest(len(links.nbytes))
        ],
        "hbm": {
            "rank": hbm.rank,
            "capacity_bytes": hbm.capacity_bytes,
            "peak_bytes": hbm.peak_bytes,
            "peak_step": hbm.peak_step,
            "holders": {h.name: h.nbytes for h in hbm.holders},
            "peak_bytes_by_rank": {str(rank): peak for rank, peak in hbm.peaks.items()},
        },
        "operators": [asdict(k) for k in analysis.kernels],
        "fidelity": [asdict(s) for s in analysis.sites],
    }
    if contended is not None:
        assert contended.figures.overall
        found["contended"] = {
            "overall": _step(contended.figures.overall),
            "steps": [_step(step) for step in contended.figures.steps.values()],
        }
    return found


def _step(step: StepFigures) -> dict[str, Any]:
    return {**asdict(step), "idle_ns": step.idle_ns}
