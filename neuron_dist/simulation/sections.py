"""The report's tables: numbers of an :class:`Analysis` as rows of text with units, for the page and the terminal."""

from __future__ import annotations

from typing import Any, NamedTuple

from neuron_dist.simulation import units
from neuron_dist.simulation.analysis import Analysis
from neuron_dist.simulation.figures import StepFigures, step_name
from neuron_dist.simulation.hbm import OTHER, Hbm

__all__ = [
    "Table", "assumptions", "axes", "collectives", "compared", "compute", "fitted", "kernels", "links", "ranks",
    "sites", "steps",
]  # fmt: skip

MOST_STEPS = 40
MOST_RANKS = 64


class Table(NamedTuple):
    """Rows of text under a header."""

    head: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    marked: tuple[int, ...] = ()
    """Rows that stand out."""
    left: str = ""
    """What is said of rows that are not shown."""


def ratio(value: float, whole: float) -> str:
    """``12.3 %``; a dash of nothing."""
    return units.share(value / whole) if whole else "-"


def number(value: float) -> str:
    """``12``; ``1.02`` of a mean that is no whole number."""
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"


def _split(step: StepFigures) -> tuple[str, ...]:
    parts = (step.step_ns, step.compute_ns, step.exposed_ns, step.overlapped_ns, step.idle_ns)
    return (*map(units.time, parts), units.share(step.mfu))


SPLIT = ("step time", "compute", "exposed comm.", "comm. behind compute", "idle", "MFU")


def steps(analysis: Analysis) -> Table:
    """Each step over all ranks, equal ones that follow each other on one row; of many rows the first, the longest
    and the last."""
    figures = analysis.figures
    runs: list[tuple[int, int, tuple[object, ...]]] = []  # first step, last step, what the row says
    for number, step in figures.steps.items():
        peak = f"{units.memory(step.peak_bytes)} (rank {step.peak_rank})"
        row = (*_split(step), units.time(step.skew_ns), step.last_rank, peak)
        if runs and runs[-1][1:] == (number - 1, row):
            runs[-1] = (runs[-1][0], number, row)
        else:
            runs.append((number, number, row))
    shown = runs
    if len(runs) > MOST_STEPS:
        longest = sorted(runs, key=lambda r: -figures.steps[r[0]].step_ns)[: MOST_STEPS - 2]
        shown = sorted({r[0]: r for r in (runs[0], runs[-1], *longest)}.values())
    rows = [
        (
            step_name(first)
            if first < 0
            else str(first)
            if first == last
            else f"{first} to {last}",
            *row,
        )
        for first, last, row in shown
    ]
    head = ("step", *SPLIT, "skew of ends", "last rank", "HBM peak")
    hidden = sum(last - first + 1 for first, last, _ in runs) - sum(
        last - first + 1 for first, last, _ in shown
    )
    left = f"{hidden} of {len(figures.steps)} steps are not shown: the longest are."
    return Table(head, rows, left=left if hidden else "")


def compared(online: Analysis, contended: Analysis) -> Table:
    """Online and contended means side by side."""
    a, b = online.figures.overall, contended.figures.overall
    assert a and b  # an analysis has at least one step
    rows = []
    for name, attribute in zip(SPLIT, (*_ATTRIBUTES, "mfu"), strict=True):
        x, y = getattr(a, attribute), getattr(b, attribute)
        say = units.share if attribute == "mfu" else units.time
        change = f"{100 * (y / x - 1):+.1f} %" if x else "-"
        rows.append((name, say(x), say(y), change))
    return Table(("simulated", "online", "contended", "change"), rows)


_ATTRIBUTES = ("step_ns", "compute_ns", "exposed_ns", "overlapped_ns", "idle_ns")


def collectives(analysis: Analysis) -> Table:
    overall = analysis.figures.overall
    assert overall
    rows: list[tuple[Any, ...]] = []
    for row in analysis.collectives:
        bandwidths = ("-" if v is None else units.rate(v) for v in (row.algbw_Bps, row.busbw_Bps))
        rows.append(
            (
                row.op, row.label or "-", row.algorithm or "-", f"{row.groups} x {row.size}", number(row.calls),
                units.volume(row.nbytes / row.count), units.time(row.time_ns / row.count), units.time(row.step_ns),
                ratio(row.step_ns, overall.step_ns), *bandwidths,
            )
        )  # fmt: skip
    head = (
        "op", "axis", "algorithm", "groups", "calls a step", "bytes a call", "time a call", "time a step",
        "of the step", "algbw", "busbw",
    )  # fmt: skip
    return Table(head, rows)


def axes(analysis: Analysis) -> Table:
    overall = analysis.figures.overall
    assert overall
    rows = [
        (
            a.label, f"{a.groups} x {a.size}", number(a.count), units.volume(a.nbytes), units.time(a.busy_ns),
            units.time(a.exposed_ns), ratio(a.exposed_ns, a.busy_ns), ratio(a.exposed_ns, overall.step_ns),
        )
        for a in analysis.axes
    ]  # fmt: skip
    head = ("axis", "groups", "calls", "bytes", "communicating", "exposed", "of it", "of the step")
    return Table(head, rows)


def links(analysis: Analysis, most: int = 12) -> Table:
    use, each = analysis.links, max(analysis.figures.traffic_steps, 1)
    rows = [
        (
            use.name(i), units.volume(use.nbytes[i] / each), units.time(use.busy_ns[i] / each),
            units.share(use.shares[i]), units.rate(use.topology.link_Bps[i]),
        )
        for i in use.busiest(most)
    ]  # fmt: skip
    return Table(
        ("link (one direction)", "bytes a step", "busy a step", "of the step", "usable"), rows, (0,)
    )


def kernels(analysis: Analysis, most: int = 15) -> Table:
    figures = analysis.figures
    each = figures.world_size * len(figures.counted)
    total = sum(k.time_ns for k in analysis.kernels)
    rows = [
        (
            k.name, k.dtype, number(k.count / each), units.time(k.time_ns / k.count), units.time(k.time_ns / each),
            ratio(k.time_ns, total), units.rate(k.flops / (k.time_ns * 1e-9), "FLOPS") if k.flops else "-", k.bound,
        )
        for k in analysis.kernels[:most]
        if k.time_ns
    ]  # fmt: skip
    head = (
        "operator",
        "dtype",
        "calls",
        "time a call",
        "time a step",
        "of all operators",
        "achieved",
        "bound by",
    )
    rest = len(analysis.kernels) - len(rows)
    return Table(head, rows, left=f"{rest} more are not shown." if rest else "")


def ranks(analysis: Analysis, most: int = MOST_RANKS) -> Table:
    """The ranks of :func:`shown_ranks`."""
    rows: list[tuple[Any, ...]] = []
    marked: list[int] = []
    shown = shown_ranks(analysis, most)
    for row in analysis.ranks:
        if row.rank not in shown:
            continue
        if row.rank == analysis.critical_rank:
            marked.append(len(rows))
        spans = (
            row.span_ns,
            row.compute_ns,
            row.exposed_ns,
            row.overlapped_ns,
            row.idle_ns,
            row.early_ns,
        )
        rows.append((row.rank, *map(units.time, spans), units.memory(row.peak_bytes)))
    head = (
        "rank", "step time", "compute", "exposed comm.", "comm. behind compute", "idle", "early at collectives", "HBM peak",
    )  # fmt: skip
    hidden = len(analysis.ranks) - len(rows)
    return Table(head, rows, tuple(marked), f"{hidden} more ranks are not shown." if hidden else "")


def shown_ranks(analysis: Analysis, most: int = MOST_RANKS) -> list[int]:
    """The ranks that tables and lanes show: all, or of more than ``most`` evenly spread ones and the critical."""
    n = analysis.figures.world_size
    if n <= most:
        return list(range(n))
    spread = {i * n // (most - 1) for i in range(most - 1)}
    return sorted(spread | {analysis.critical_rank})


def holders(hbm: Hbm) -> list[tuple[str, int]]:
    """(name, bytes) at the peak; of many the six largest, then the others together."""
    named = [(h.name, h.nbytes) for h in hbm.holders if h.name != OTHER]
    rest = sum(h.nbytes for h in hbm.holders if h.name == OTHER)
    if len(named) > 6:
        named, rest = named[:6], rest + sum(nbytes for _, nbytes in named[6:])
    found = named + ([(OTHER, rest)] if rest else [])
    return found or [("in use", hbm.peak_bytes)]


def sites(analysis: Analysis) -> Table:
    rows = []
    for s in analysis.sites:
        where = ", ".join(map(str, s.ranks[:4])) + (
            f" and {len(s.ranks) - 4} more" if len(s.ranks) > 4 else ""
        )
        rows.append((s.rule, s.site, s.message, s.count, where))
    return Table(("rule", "site", "message", "count", "ranks"), rows)


def assumptions(analysis: Analysis) -> Table:
    spec = analysis.cluster.spec
    rows = [
        (
            name,
            _number(name, spec["parameters"][name]),
            ", ".join(_number(name, v) for v in entry.get("alternatives", ())) or "-",
            entry["source"],
        )
        for name, entry in sorted(spec["assumptions"].items())
    ]
    return Table(("name", "value", "alternatives", "why"), rows)


def fitted(analysis: Analysis) -> Table:
    spec = analysis.cluster.spec
    rows = [
        (name, _number(name, spec["parameters"][name]), entry["fitted_to"])
        for name, entry in sorted(spec["fitted"].items())
    ]
    return Table(("name", "value", "fitted to"), rows)


def compute(analysis: Analysis) -> Table:
    """The rates that operators are charged by."""
    spec = analysis.cluster.spec
    rates, sources = spec["compute"], spec["sources"]
    per_core = [
        (
            f"{kind} on TensorE, one physical core",
            units.rate(flops, "FLOPS"),
            sources.get("compute", ""),
        )
        for kind, flops in rates["tensor_flops"].items()
    ]
    rows = [
        *per_core,
        (
            "one chip's peak, bfloat16: what MFU is a share of",
            units.rate(rates["chip_flops"], "FLOPS"),
            sources.get("compute", ""),
        ),
        ("HBM of one chip", units.rate(rates["hbm_Bps"]), sources.get("hbm_Bps", "")),
        (
            "HBM capacity of one chip",
            units.memory(spec["hbm_bytes_per_chip"]),
            sources.get("hbm", ""),
        ),
    ]
    return Table(("rate", "value", "source"), rows)


def _number(name: str, value: Any) -> str:
    """A parameter's value, with the unit that its name ends in where that makes it shorter."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_Bps"):
        return units.rate(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
