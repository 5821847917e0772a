"""The end of a run in ten lines: simulated figures only."""

from __future__ import annotations

from neuron_dist.simulation import units
from neuron_dist.simulation.figures import RunFigures, Traffic
from neuron_dist.simulation.links import link_use

__all__ = ["slowest", "ten_lines"]


def ten_lines(figures: RunFigures) -> str:
    """At most ten lines of plain text, without an end of line: what the run would take on its cluster.

    Raises what :func:`collectives.plan` raises where the traffic names an op that the planner does not have.
    """
    step = figures.overall
    lines = [
        (
            "simulated",
            f"{figures.cluster}, {figures.world_size} rank{'s' * (figures.world_size != 1)}",
        )
    ]
    if step is None:
        lines.append(("step time", "none: no step has ended"))
    else:
        parts = (
            ("compute", step.compute_ns),
            ("exposed communication", step.exposed_ns),
            ("idle", step.idle_ns),
        )
        split = ", ".join(
            f"{units.share(ns / step.step_ns if step.step_ns else 0)} {name}" for name, ns in parts
        )
        capacity = figures.hbm_bytes
        worst = max(figures.ranks, key=lambda r: r.peak_bytes)
        lines += [
            ("step time", f"{units.time(step.step_ns)} ({figures.counted_text})"),
            ("split", split),
            (
                "exposed",
                f"{units.time(step.exposed_ns)} a step, with {units.time(step.overlapped_ns)} more behind compute",
            ),
            ("MFU", f"{units.share(step.mfu)} of {units.rate(figures.peak_flops, 'FLOPS')} a core"),
            (
                "HBM peak",
                f"{units.memory(worst.peak_bytes)} of {units.memory(capacity)} "
                f"({units.share(worst.peak_bytes / capacity)}), rank {worst.rank}",
            ),
        ]
    if (found := slowest(figures)) is not None:
        row, total_ns, count = found
        where = row.label or f"{len(row.ranks)} ranks"
        each = max(figures.traffic_steps, 1)
        calls = f"{count / each:g} call{'s' * (count != each)}"
        said = (
            f"{units.time(total_ns / each)}{' a step' if figures.traffic_steps else ''} in {calls}"
        )
        lines.append(("slowest", f"{row.op} on {where} ({row.algorithm}): {said}"))
    use = link_use(figures)
    if use.hot is not None:
        lines.append(
            (
                "hot link",
                f"{use.name(use.hot)}, busy {units.share(use.shares[use.hot])} of the time",
            )
        )
    sites = f" at {figures.sites} site{'s' * (figures.sites != 1)}" if figures.reports else ""
    lines.append(("fidelity", f"{figures.reports} report{'s' * (figures.reports != 1)}{sites}"))
    lines.append(
        ("trace", f"neuron-dist report {figures.trace}" if figures.trace else "none was written")
    )
    return "\n".join(f"  {name:<11}{text}" for name, text in lines)


def slowest(figures: RunFigures) -> tuple[Traffic, int, int] | None:
    """The op, algorithm and group that take longest: (one row of it, its time in ns, its calls) over all the traffic,
    all roots together; None where there was none that took time."""
    sums: dict[tuple, tuple[int, int]] = {}
    rows: dict[tuple, Traffic] = {}
    for row in figures.traffic:
        key = (row.op, row.algorithm, row.label, row.ranks)
        time_ns, count = sums.get(key, (0, 0))
        sums[key] = (time_ns + row.time_ns, count + row.count)
        rows[key] = row
    if not any(time_ns for time_ns, _ in sums.values()):  # of groups of one rank nothing
        return None
    key = max(sums, key=lambda k: sums[k][0])
    return rows[key], *sums[key]
