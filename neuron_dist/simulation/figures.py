"""The figures of a run: each rank's steps, and what its groups moved. Every number is simulated.

Both a trace (:mod:`neuron_dist.simulation.analysis`) and the native core's small ledger, which is kept where no
trace is written, can fill :class:`RunFigures`; the summary and the hot link are computed from it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from collectives.topology import Cluster
from neuron_dist.simulation.roofline import Roofline

__all__ = ["WHOLE_RUN", "RankStep", "RunFigures", "StepFigures", "Traffic", "mean", "step_name"]

_ROUNDING_NS = 1e-3
"""What a difference of means may leave of nothing."""

WHOLE_RUN = -1
"""The number of the one step that stands for a run in which no step was marked."""


def step_name(step: int) -> str:
    """``step 3``, or ``the whole run``."""
    return "the whole run" if step == WHOLE_RUN else f"step {step}"


@dataclass(frozen=True)
class RankStep:
    """One step of one rank, in simulated nanoseconds; see :class:`neuron_dist.simulation.intervals.Split`."""

    rank: int
    step: int
    start_ns: int
    end_ns: int
    compute_ns: int
    exposed_ns: int
    overlapped_ns: int
    flops: int
    peak_bytes: int
    """Most HBM that was in use."""

    @property
    def span_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        return self.span_ns - self.compute_ns - self.exposed_ns


@dataclass(frozen=True)
class Traffic:
    """Collectives of one op and algorithm in one group, or messages of one pair of ranks, added up."""

    ranks: tuple[int, ...]
    """Global ranks in group order; of messages (sender, receiver)."""
    label: str
    """What people call the group: a mesh axis such as ``mesh_dp``, or ``default_pg``."""
    op: str
    algorithm: str
    root: int
    """Group rank; 0 where there is none."""
    count: int
    nbytes: int
    """As nccom-test counts them, of all ``count`` together."""
    time_ns: int
    """From the last arrival to the end, of all ``count`` together."""


@dataclass(frozen=True)
class StepFigures:
    """One step over all ranks, or the mean of several."""

    step: int | None
    """None: a mean."""
    step_ns: float
    """From the last rank's end of the step before to the last rank's end, as the replay has it."""
    compute_ns: float
    """Mean over ranks, like the next two."""
    exposed_ns: float
    overlapped_ns: float
    flops: float
    """Of all ranks together."""
    mfu: float
    skew_ns: float
    """Between the first and the last rank to end the step."""
    last_rank: int
    """The rank that ended last (most often)."""
    peak_bytes: int
    peak_rank: int

    @property
    def idle_ns(self) -> float:
        """Neither compute nor exposed communication, so that the parts add up to ``step_ns``: mostly waiting for other
        ranks. A little below 0 where ranks end their steps apart, in another order each time, and never wait."""
        idle_ns = self.step_ns - self.compute_ns - self.exposed_ns
        return idle_ns if abs(idle_ns) > _ROUNDING_NS else 0.0


@dataclass(frozen=True)
class RunFigures:
    """What a run's ranks did, in simulated time."""

    cluster: Cluster
    world_size: int
    ranks: tuple[RankStep, ...]
    """Every step of every rank; a step that not all ranks have ended is left out."""
    traffic: tuple[Traffic, ...]
    traffic_ns: float
    """The simulated time in which ``traffic`` was seen: of a trace the counted steps, of a ledger the whole run."""
    traffic_steps: int
    """Steps in it; 0 where traffic was not counted by steps."""
    hbm_bytes: int
    """Capacity of one logical core."""
    reports: int = 0
    """Fidelity reports in all, repeats included."""
    sites: int = 0
    """Different ones."""
    trace: str = ""
    """Folder of the trace; empty if there is none."""
    only: int | None = None
    """The one step that is asked for; None: all but the first."""

    @cached_property
    def peak_flops(self) -> float:
        """Flops per second of one logical core that MFU is a share of."""
        return Roofline.of(self.cluster).peak_flops

    @cached_property
    def steps(self) -> dict[int, StepFigures]:
        """Each step, in order."""
        found: dict[int, list[RankStep]] = {}
        for rank in self.ranks:
            found.setdefault(rank.step, []).append(rank)
        return {step: self._step(step, ranks) for step, ranks in sorted(found.items())}

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """The steps that means are of: all but the first, which also does what is done once, where there are more."""
        if self.only is not None:
            return (self.only,)
        steps = tuple(self.steps)
        return steps[1:] if len(steps) > 1 else steps

    @cached_property
    def overall(self) -> StepFigures | None:
        """The mean of the counted steps; None where no rank has ended a step."""
        return mean([self.steps[step] for step in self.counted]) if self.counted else None

    @property
    def counted_text(self) -> str:
        """``mean of steps 2 to 9; the first is left out``."""
        first, last = self.counted[0], self.counted[-1]
        if first == last:
            alone = "; the first is left out" if self.only is None and len(self.steps) > 1 else ""
            return f"{step_name(first)} alone{alone}" if first != WHOLE_RUN else step_name(first)
        return f"mean of steps {first} to {last}; the first is left out"

    def _step(self, step: int, ranks: Sequence[RankStep]) -> StepFigures:
        step_ns = max(r.end_ns for r in ranks) - max(r.start_ns for r in ranks)
        flops = sum(r.flops for r in ranks)
        ends = [r.end_ns for r in ranks]
        peak = max(ranks, key=lambda r: r.peak_bytes)
        possible = len(ranks) * step_ns * 1e-9 * self.peak_flops
        return StepFigures(
            step=step,
            step_ns=step_ns,
            compute_ns=sum(r.compute_ns for r in ranks) / len(ranks),
            exposed_ns=sum(r.exposed_ns for r in ranks) / len(ranks),
            overlapped_ns=sum(r.overlapped_ns for r in ranks) / len(ranks),
            flops=flops,
            mfu=flops / possible if possible else 0.0,
            skew_ns=max(ends) - min(ends),
            last_rank=max(ranks, key=lambda r: r.end_ns).rank,
            peak_bytes=peak.peak_bytes,
            peak_rank=peak.rank,
        )


def mean(steps: Sequence[StepFigures]) -> StepFigures:
    """The mean of steps; MFU is of their time together, the peak the highest."""

    def of(name: str) -> float:
        return sum(getattr(s, name) for s in steps) / len(steps)

    lasts = [s.last_rank for s in steps]
    peak = max(steps, key=lambda s: s.peak_bytes)
    total_ns = sum(s.step_ns for s in steps)
    return StepFigures(
        step=None,
        step_ns=of("step_ns"),
        compute_ns=of("compute_ns"),
        exposed_ns=of("exposed_ns"),
        overlapped_ns=of("overlapped_ns"),
        flops=of("flops"),
        mfu=sum(s.mfu * s.step_ns for s in steps) / total_ns if total_ns else 0.0,
        skew_ns=of("skew_ns"),
        last_rank=max(lasts, key=lasts.count),
        peak_bytes=peak.peak_bytes,
        peak_rank=peak.peak_rank,
    )
