"""Test cases of collectives as data, and the loop that runs many of them in one rank."""

import functools
import traceback
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from neuron_dist import _C
from neuron_dist.distributed import plans
from tests.distributed import reference
from tests.distributed.inputs import (
    ALL_DTYPES,
    LAYOUTS,
    LAZY,
    REDUCIBLE,
    SHAPES,
    place,
    same_bits,
    values,
)

BIG = (300_007,)
"""Above the size at which an engine changes from one algorithm to another."""


@dataclass(frozen=True)
class Case:
    """One call of a collective."""

    op: str
    shape: tuple = (17,)
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    reduction: str = ""
    root: int = 0
    async_op: bool = False

    def __str__(self):
        parts = [
            str(self.dtype).removeprefix("torch."),
            str(self.shape),
            self.layout,
            self.reduction,
        ]
        parts += [f"root {self.root}" if self.root else "", "async" if self.async_op else ""]
        return f"{self.op}[{', '.join(p for p in parts if p)}]"


def cases_of(op, world_size, *, reduces=False, rooted=False):
    """Every dtype and reduction on one shape, every shape and layout in one dtype, and a few of the rest."""
    base = Case(op, reduction="SUM" if reduces else "")
    if reduces:
        cases = [
            replace(base, dtype=d, reduction=r)
            for d in REDUCIBLE
            for r in reference.reductions_of(d)
        ]
    else:
        cases = [replace(base, dtype=d) for d in ALL_DTYPES]
    cases += [replace(base, shape=s, layout=x) for s in SHAPES for x in LAYOUTS if x != "conj"]
    cases += [replace(base, shape=(3, 5), dtype=torch.complex64, layout="conj")]
    cases += [
        replace(base, shape=BIG, dtype=d, layout=x)
        for d in (torch.float32, torch.bfloat16)
        for x in LAYOUTS[:3]
    ]
    cases += [
        replace(base, async_op=True),
        replace(base, shape=(1000,), layout="strided", async_op=True),
    ]
    if rooted:
        cases += [replace(base, root=r, shape=s) for r in range(1, world_size) for s in SHAPES]
    return cases


@functools.cache
def _planner(ranks):
    return plans.Plans(range(ranks), 0).order_of_additions


@dataclass
class Context:
    """Where a case runs, and how its result is checked."""

    case: Case
    seed: int
    device: str
    same_order: bool
    """Whether reductions must have the bits of the schedule's order of additions."""

    def __post_init__(self):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._placed = []

    def content(self, rank, part=0, shape=None):
        """What ``rank`` contributes; ``part`` tells apart several tensors of one rank."""
        return values(
            self.seed,
            100 * part + rank,
            self.case.shape if shape is None else shape,
            self.case.dtype,
        )

    def put(self, content):
        """``content`` as a tensor in the case's layout."""
        self._placed.append(place(content, self.case.layout, self.device))
        return self._placed[-1].tensor

    def empty(self, shape=None):
        """A tensor to receive into, filled with what must not remain."""
        shape = self.case.shape if shape is None else shape
        return self.put(torch.full(shape, 5).to(self.case.dtype))

    def reduce_op(self):
        """The case's reduction as c10d spells it."""
        if self.case.reduction == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(reference.PREMUL_FACTOR)
        return getattr(dist.ReduceOp, self.case.reduction)

    def reduced(self, contributions, segments=None):
        """``segments``: of an uneven reduce_scatter, each rank's number of elements."""
        op = next(o for o in ("all_reduce", "reduce_scatter", "reduce") if self.case.op.startswith(o))
        n = len(contributions)
        programs = reference.rank_order(n)
        if self.same_order and n > 1:
            nbytes = contributions[0].nbytes
            if op == "reduce_scatter":
                numel = sum(segments) if segments else contributions[0].numel() * n
                nbytes = numel * contributions[0].element_size()
            planned = _planner(n)(op, _C.size_class(nbytes), self.case.root if op == "reduce" else 0)
            each = len(planned) // n if op == "reduce_scatter" else len(planned)
            first = self.rank * each if op == "reduce_scatter" else 0
            programs = planned[first : first + each].tolist()
        # c10d hands complex tensors of all_reduce to backends as pairs of reals, and those are what is divided.
        reals = op == "all_reduce" and self.case.dtype.is_complex
        if reals:
            contributions = [torch.view_as_real(c) for c in contributions]
        total = reference.reduced(self.case.reduction, contributions, programs)
        return torch.view_as_complex(total) if reals else total

    def wait(self, work):
        """Waits if the call was asynchronous, and else checks that it returned nothing."""
        if self.case.async_op:
            work.wait()
        else:
            assert work is None, f"a synchronous call returned {work!r}"

    def check(self, actual, expected):
        allowed = 0.0
        if self.case.reduction:
            allowed = reference.tolerance(
                self.case.reduction, self.case.dtype, self.world_size, same_order=self.same_order
            )
        actual = actual.cpu()
        if allowed:
            wide = torch.complex128 if actual.dtype.is_complex else torch.float64
            close = torch.allclose(actual.to(wide), expected.to(wide), rtol=allowed, atol=allowed)
            assert close and actual.dtype == expected.dtype, (
                f"got {actual}, expected about {expected}"
            )
        else:
            assert same_bits(actual, expected), f"got {actual}, expected {expected}"

    def check_neighbours(self):
        assert all(p.neighbours_untouched() for p in self._placed), (
            "memory beside the tensor has changed"
        )


def run_cases(cases, table, device, same_order):
    """Runs the cases by the functions of ``table``; returns the failures as text.

    A rank goes on after a failure, so that one launch reports all of them.
    """
    failures = []
    for seed, case in enumerate(cases):
        context = Context(case, seed, device, same_order)
        try:
            table[case.op](context)
            context.check_neighbours()
        except AssertionError as error:
            failures.append(f"{case}: {error}")
        except Exception as error:
            if case.layout in LAZY and "timed out" not in str(error).lower():
                continue
            frame = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{case}: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            )
    return failures
