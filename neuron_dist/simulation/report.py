"""The page that people read of a run: one HTML file, nothing from outside, light and dark.

:func:`render` fills ``templates/report.html.j2``; the numbers come from :mod:`neuron_dist.simulation.analysis`, their
texts from :mod:`neuron_dist.simulation.sections`, pictures from ``drawings`` and ``topology_svg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from neuron_dist.simulation import sections, units
from neuron_dist.simulation.analysis import Analysis
from neuron_dist.simulation.drawings import hbm_svg, lanes_svg
from neuron_dist.simulation.figures import StepFigures, step_name
from neuron_dist.simulation.run_header import command_of
from neuron_dist.simulation.sections import holders, ratio, shown_ranks
from neuron_dist.simulation.topology_svg import level_shares, pictures

__all__ = ["render", "write"]

PARTS = (("compute", "compute_ns"), ("exposed", "exposed_ns"), ("idle", "idle_ns"))
SHORT = 16
"""Ranks up to which their table is open at once."""
NAMES = {"compute": "compute", "exposed": "exposed communication", "idle": "idle"}


def write(
    path: str | Path,
    analysis: Analysis,
    contended: Analysis | None = None,
    what_if: Sequence[tuple[str, float]] | None = None,
) -> None:
    """Writes the page; arguments as of :func:`render`."""
    Path(path).write_text(render(analysis, contended, what_if), encoding="utf-8")


def render(
    analysis: Analysis,
    contended: Analysis | None = None,
    what_if: Sequence[tuple[str, float]] | None = None,
) -> str:
    """The page as text.

    ``contended``: of the same traces replayed with links shared between all that use them at one time; its figures
    then stand beside the online ones. ``what_if``: (what is changed, simulated ns of a step), the
    first with nothing changed.
    """
    overall = analysis.figures.overall
    assert overall  # an analysis has at least one step
    shared = contended.figures.overall if contended else None
    header = analysis.traces[0].header
    context = {
        "title": f"Simulated run on {analysis.cluster}, {_count(analysis.figures.world_size, 'rank')}",
        "counted": _capital(analysis.figures.counted_text),
        "command": command_of(analysis.traces),
        "notes": analysis.notes,
        "facts": _facts(analysis, overall),
        "splits": [_split("online", overall)]
        + ([_split("with links shared", shared)] if shared else []),
        "overlapped": units.time(overall.overlapped_ns),
        "compared": sections.compared(analysis, contended) if contended else None,
        "steps": sections.steps(analysis),
        "lanes": _lanes(analysis),
        "ranks": _ranks(analysis),
        "collectives": sections.collectives(analysis),
        "axes": sections.axes(analysis),
        "links": _links(analysis),
        "hbm": _hbm(analysis),
        "kernels": _kernels(analysis),
        "what_if": _what_if(what_if) if what_if else None,
        "sites": sections.sites(analysis),
        "assumptions": sections.assumptions(analysis),
        "fitted": sections.fitted(analysis),
        "compute": sections.compute(analysis),
        "sources": sorted(analysis.cluster.spec["sources"].items()),
        "foot": f"torch {header.get('torch', '')}; trace {analysis.figures.trace}",
    }
    return _template().render(context)


@cache
def _template() -> Any:
    loader = PackageLoader("neuron_dist.simulation", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _facts(analysis: Analysis, overall: StepFigures) -> list[dict[str, str]]:
    figures, hbm, links = analysis.figures, analysis.hbm, analysis.links
    hot = links.hot
    peak_step = "" if hbm.peak_step is None else f", {step_name(hbm.peak_step)}"
    facts = [
        ("Simulated step time", units.time(overall.step_ns), figures.counted_text),
        (
            "MFU",
            units.share(overall.mfu),
            f"of {units.rate(figures.peak_flops, 'FLOPS')} a core, bfloat16",
        ),
        (
            "Exposed communication",
            ratio(overall.exposed_ns, overall.step_ns),
            f"{units.time(overall.exposed_ns)} of a simulated step",
        ),
        (
            "HBM peak",
            units.memory(hbm.peak_bytes),
            f"{ratio(hbm.peak_bytes, hbm.capacity_bytes)} of {units.memory(hbm.capacity_bytes)}; rank {hbm.rank}{peak_step}",
        ),
        (
            "Hot link",
            links.name(hot) if hot is not None else "none",
            f"busy {units.share(links.shares[hot])} of the simulated time"
            if hot is not None
            else "nothing moved",
        ),
    ]
    if analysis.collectives:
        c = analysis.collectives[0]
        facts.append(
            (
                "Slowest communication",
                c.op,
                f"{c.label}, {c.algorithm}: {units.time(c.step_ns)} of a simulated step",
            )
        )
    facts.append(
        (
            "Critical rank",
            f"rank {analysis.critical_rank}",
            "last at collectives: the others wait for it",
        )
    )
    sites = (
        _count(figures.sites, "site")
        if figures.sites
        else "nothing that the real TorchNeuron would not do"
    )
    facts.append(("Fidelity", _count(figures.reports, "report"), sites))
    return [dict(zip(("name", "value", "detail"), fact, strict=True)) for fact in facts]


def _split(name: str, step: StepFigures) -> dict[str, Any]:
    parts = []
    for css, attribute in PARTS:
        value = getattr(step, attribute)
        share = value / step.step_ns if step.step_ns else 0.0
        text = f"{units.time(value)} ({units.share(share)})"
        parts.append({"name": NAMES[css], "css": css, "share": share, "text": text})
    label = f"A simulated step of {units.time(step.step_ns)}: " + ", ".join(
        f"{p['name']} {p['text']}" for p in parts
    )
    return {
        "name": _capital(name),
        "time": units.time(step.step_ns),
        "parts": parts,
        "label": label,
    }


def _lanes(analysis: Analysis) -> dict[str, Any]:
    figures = analysis.figures
    step = figures.counted[-1]
    spans = [r for r in figures.ranks if r.step == step]
    start, end = min(r.start_ns for r in spans), max(r.end_ns for r in spans)
    shown = shown_ranks(analysis)
    title = f"Lanes of {len(shown)} ranks over {step_name(step)}, {units.time(end - start)} of simulated time"
    svg = lanes_svg(
        shown, [analysis.busy[r] for r in shown], start, end, analysis.critical_rank, title
    )
    words = (
        "Above compute, below communication of each rank; lighter where it is busy for a part of the pixel. "
        "* is the critical rank."
    )
    if len(shown) < figures.world_size:
        words += f" {len(shown)} of {figures.world_size} ranks are drawn."
    legend = [
        {"name": name, "css": css, "text": ""}
        for name, css in (
            ("compute", "compute"),
            ("exposed communication", "exposed"),
            ("communication behind compute", "overlapped"),
        )
    ]
    return {
        "heading": f"Ranks over {step_name(step)}, simulated",
        "svg": Markup(svg),
        "words": words,
        "legend": legend,
    }


def _ranks(analysis: Analysis) -> dict[str, Any]:
    table = sections.ranks(analysis)
    words = (
        "Means of the counted steps. Early: from when a rank was ready for its collectives to the last rank's arrival, "
        f"added up; it may have computed meanwhile. Rank {analysis.critical_rank} was early least, so the others wait "
        f"for it. {table.left}"
    )
    return {**table._asdict(), "words": words, "long": len(table.rows) > SHORT}


def _links(analysis: Analysis) -> dict[str, Any]:
    use = analysis.links
    if use.hot is None:
        return {"words": "Nothing moved between cores in the counted steps.", "rows": []}
    drawn, left = pictures(use)
    shares = level_shares(use)
    legend = [{"name": "unused", "css": "u0", "text": ""}]
    legend += [
        {"name": f"up to {share}", "css": f"u{i}", "text": ""} for i, share in enumerate(shares, 1)
    ]
    layout = analysis.cluster.spec["network"]["layout"]
    efa = " The square beside a chip is its EFA." if analysis.cluster.instances > 1 else ""
    colour = "Colour and width: the part of the simulated time in which a link is busy. "
    reading = (
        colour
        + {
            "torus": "The half of a link next to a chip is what that chip sends; links at the margin go round to the "
            f"other side. A chip's rim is the busiest of its cores' own DMA links.{efa}",
            "switched": "A cell is a chip; its columns, from the left: its cores' DMA, "
            + (
                "the server's switch, "
                if len(analysis.cluster.spec["network"]["link_Bps"]) > 2
                else ""
            )
            + "the rack's switch, the chip in its place in the other rack"
            + (", its EFA" if analysis.cluster.instances > 1 else "")
            + ". Above what it sends, below what it receives.",
            "single": "One chip: the DMA of each of its cores, what it sends and what it receives.",
        }[layout]
    )
    axis = len(analysis.cluster.spec["network"]["shape"]) > 2 and layout == "torus"
    if axis:
        reading += (
            " Slanted stubs go to the same place in the neighbouring servers of the UltraServer."
        )
    hot = use.hot
    words = (
        f"The hot link is {use.name(hot)}, ringed: {units.volume(use.nbytes[hot] / analysis.figures.traffic_steps)} a "
        f"step keep it busy {units.share(use.shares[hot])} of the simulated time at its usable bandwidth."
    )
    table = sections.links(analysis)
    return {
        **table._asdict(),
        "words": words,
        "legend": legend,
        "reading": reading,
        "pictures": [(caption, Markup(svg)) for caption, svg in drawn],
        "left": left,
    }


def _hbm(analysis: Analysis) -> dict[str, Any]:
    hbm = analysis.hbm
    peak, capacity = units.memory(hbm.peak_bytes), units.memory(hbm.capacity_bytes)
    held = holders(hbm)
    whole = max(sum(nbytes for _, nbytes in held), 1)
    parts = [
        {
            "name": name,
            "css": f"h{min(i, 6)}",
            "share": nbytes / whole,
            "text": f"{units.memory(nbytes)} ({units.share(nbytes / whole)})",
        }
        for i, (name, nbytes) in enumerate(held)
    ]
    used = hbm.peak_bytes / hbm.capacity_bytes
    free = units.memory(hbm.capacity_bytes - hbm.peak_bytes)
    filled = [
        {
            "name": "in use at the peak",
            "css": "compute",
            "share": used,
            "text": f"{peak} ({units.share(used)})",
        },
        {"name": "free", "css": "idle", "share": 1 - used, "text": free},
    ]
    when = f" in {step_name(hbm.peak_step)}" if hbm.peak_step is not None else ""
    words = f"Rank {hbm.rank} used most: {peak} of {capacity} ({ratio(hbm.peak_bytes, hbm.capacity_bytes)}){when}."
    if len(hbm.peaks) > 1:
        least = min(hbm.peaks, key=lambda r: hbm.peaks[r])
        alike = units.memory(hbm.peaks[least]) == peak
        words += (
            " All ranks peak at as much."
            if alike
            else f" Rank {least} used least, {units.memory(hbm.peaks[least])}."
        )
    edges = [r.end_ns for r in analysis.figures.ranks if r.rank == hbm.rank]
    heading = f"HBM of rank {hbm.rank} over simulated time"
    in_sight = hbm.allocated.max(initial=1) > hbm.capacity_bytes / 5
    reading = "Thin lines are the ends of steps. " + (
        f"The dashed line is the capacity, {capacity}."
        if in_sight
        else f"The capacity, {capacity}, is far above this scale."
    )
    return {
        "words": words,
        "parts": parts,
        "label": "Held at the peak: " + ", ".join(f"{p['name']} {p['text']}" for p in parts),
        "filled": filled,
        "filled_label": f"{peak} of {capacity} in use at the peak",
        "heading": heading,
        "svg": Markup(
            hbm_svg(
                hbm.times_ns, hbm.allocated.astype(np.int64), hbm.capacity_bytes, edges, heading
            )
        ),
        "reading": reading,
    }


def _kernels(analysis: Analysis) -> dict[str, Any]:
    table = sections.kernels(analysis)
    words = f"Calls and times are of one rank in one step. Bound: what the roofline spends most of the time on. {table.left}"
    return {**table._asdict(), "words": words}


def _what_if(rows: Sequence[tuple[str, float]]) -> dict[str, Any]:
    first = rows[0][1]
    most = max(ns for _, ns in rows) or 1.0
    return {
        "rows": [
            {"name": name, "time": units.time(ns), "ratio": ratio(ns, first), "share": ns / most}
            for name, ns in rows
        ],
        "words": "Replays of the trace, each with one change, compared with the first row. Means of all steps, the "
        "first included.",
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
