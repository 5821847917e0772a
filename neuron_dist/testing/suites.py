"""What benchmarks/op_coverage.py can run: torch's databases of operators, modules and optimizers, on the device and the CPU.

A suite says which cases it has, and what is to be done for one of them; ``op_workers`` runs them in processes, and
``op_docs`` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import torch

from neuron_dist.testing import (
    dtensor_checks,
    module_checks,
    op_checks,
    optimizer_checks,
    tracing_checks,
)
from neuron_dist.testing.op_checks import Check
from neuron_dist.testing.op_workers import Case

__all__ = ["SUITES", "OpSuite", "Suite", "name_of"]

Todo = tuple[int, str, Any]
"""One thing to do: the sample's index, the variant, and what ``run`` needs."""


class Suite(Protocol):
    """A database, and the ways in which its entries are used."""

    @property
    def title(self) -> str: ...

    @property
    def about(self) -> str:
        """What is compared, for the docs: a sentence or two."""

    @property
    def meaning(self) -> dict[str, str]:
        """The variants, and what each does."""

    def cases(self, layouts: Iterable[str] = ("strided",)) -> list[Case]:
        """Everything there is to run, in a fixed order."""

    def usual(self, case: Case) -> bool:
        """Whether ``case`` has the one dtype in which its entry is always tested."""

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        """The checks of one case, of the first ``most`` samples (all if None).

        Raises NotImplementedError or unittest.SkipTest where the database has no samples.
        """

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        """Does one of them."""


def name_of(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


USUAL = ("float32", "complex64", "int64", "bool")
SUPPORTS = {layout: f"supports_{layout}" for layout in op_checks.LAYOUTS} | {
    "sparse_coo": "supports_sparse"
}


def _first(dtypes: Iterable[torch.dtype]) -> str | None:
    names = {name_of(dtype) for dtype in dtypes}
    return next((name for name in USUAL if name in names), None)


@dataclass(frozen=True)
class OpSuite:
    """Operators that torch describes by ``OpInfo``."""

    title: str
    about: str
    database: Callable[[], list[Any]]
    meaning: dict[str, str] = field(default_factory=lambda: op_checks.MEANING)

    @cache  # noqa: B019  (there is one suite of each kind)
    def ops(self) -> dict[str, Any]:
        """The operators by their formatted names."""
        return {op.formatted_name: op for op in self.database()}

    def __hash__(self) -> int:
        return hash(self.title)

    def cases(self, layouts: Iterable[str] = ("strided",)) -> list[Case]:
        return [
            Case(name, dtype, layout)
            for name, op in self.ops().items()
            for dtype in sorted(map(name_of, op.supported_dtypes("cpu")))
            for layout in layouts
            if layout == "strided" or getattr(op, SUPPORTS[layout], False)
        ]

    def usual(self, case: Case) -> bool:
        dtypes = self.ops()[case.op].supported_dtypes("cpu")
        return case.layout == "strided" and case.dtype == _first(dtypes)

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        op, dtype = self.ops()[case.op], getattr(torch, case.dtype)
        chosen = [v for v in op_checks.variants_of(op, dtype) if v in variants & set(self.meaning)]
        samples = op_checks.samples(op, dtype, most, case.layout)
        todo: list[Todo] = [(i, v, sample) for i, sample in enumerate(samples) for v in chosen]
        first = min(op.supported_dtypes("cpu"), key=str)
        if "errors" in variants and case.layout == "strided" and dtype is first:
            todo += [(i, "errors", sample) for i, sample in enumerate(op_checks.errors(op))]
        return todo

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        _, variant, sample = todo
        outcome = op_checks.check(self.ops()[case.op], variant, sample, device)
        return [] if outcome is None else [outcome]


def _references() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import python_ref_db

    return list(python_ref_db)


def _extensions() -> list[Any]:
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.custom_op_db import custom_op_db
    from torch.testing._internal.hop_db import hop_db

    return [*custom_op_db, *autograd_function_db, *hop_db]


OPERATORS = OpSuite(
    "Operators",
    "Torch's own operator database (`torch.testing`), the foreach operators too.",
    op_checks.all_ops,
)
REFERENCES = OpSuite(
    "Python references",
    "`python_ref_db`: torch's operators written in Python (`torch._refs`), in terms of prims.",
    _references,
    # in-place forms of the database are those of the operators, not of the references
    {v: text for v, text in op_checks.MEANING.items() if v not in ("inplace", "gradgrad", "jvp")},
)
EXTENSIONS = OpSuite(
    "Custom and higher-order operators",
    "`custom_op_db`, `autograd_function_db` and `hop_db`: operators and autograd functions that are written in Python, "
    "`scan`, `map`, `cond`, `while_loop`, FlexAttention.",
    _extensions,
)


@dataclass(frozen=True)
class TracingSuite(OpSuite):
    """The operators once more, seen by torch's own checkers instead of compared value by value."""

    def __hash__(self) -> int:
        return hash(self.title)

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        op, dtype = self.ops()[case.op], getattr(torch, case.dtype)
        samples = op_checks.samples(op, dtype, most, case.layout)
        chosen = [v for v in self.meaning if v in variants]
        return [(i, v, sample) for i, sample in enumerate(samples) for v in chosen]

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        _, variant, sample = todo
        return [tracing_checks.check(self.ops()[case.op], variant, sample, device)]


class ModuleSuite:
    """The modules of ``module_db``, in training and in evaluation mode."""

    title = "Modules"
    about = "`module_db`: every module of `torch.nn` with the database's inputs, in training and in evaluation mode."
    meaning = module_checks.MEANING

    def cases(self, layouts: Iterable[str] = ("strided",)) -> list[Case]:
        return [
            Case(name, dtype)
            for name, info in module_checks.all_modules().items()
            for dtype in sorted(map(name_of, info.dtypes))
        ]

    def usual(self, case: Case) -> bool:
        return case.dtype == "float32"

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        info, dtype = module_checks.all_modules()[case.op], getattr(torch, case.dtype)
        todo: list[Todo] = []
        for training in (True, False):
            for i, sample in enumerate(module_checks.samples(info, dtype, training)[:most]):
                chosen = [v for v in module_checks.variants_of(info) if v in variants]
                todo += [(i, v, (sample, training)) for v in chosen]
            if "errors" in variants:
                failing = module_checks.errors(info, dtype, training)
                todo += [(i, "errors", (sample, training)) for i, sample in enumerate(failing)]
        return todo

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        info, dtype = module_checks.all_modules()[case.op], getattr(torch, case.dtype)
        _, variant, (sample, training) = todo
        return [module_checks.check(info, variant, sample, dtype, training, device)]


class OptimizerSuite:
    """The optimizers of ``optim_db``."""

    title = "Optimizers"
    about = (
        "`optim_db`: every optimizer with the database's settings, on parameters of two, one and no dimensions; "
        "parameters, state and losses of four steps."
    )
    meaning = optimizer_checks.MEANING

    def cases(self, layouts: Iterable[str] = ("strided",)) -> list[Case]:
        return [
            Case(name, dtype)
            for name, info in optimizer_checks.all_optimizers().items()
            for dtype in optimizer_checks.dtypes_of(info)
        ]

    def usual(self, case: Case) -> bool:
        return case.dtype == "float32"

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        info, dtype = optimizer_checks.all_optimizers()[case.op], getattr(torch, case.dtype)
        todo: list[Todo] = [
            (i, v, sample)
            for i, sample in enumerate(optimizer_checks.samples(info, dtype)[:most])
            for v in optimizer_checks.variants_of(info, sample, dtype)
            if v in variants
        ]
        if "errors" in variants and case.dtype == "float32":
            todo += [(i, "errors", s) for i, s in enumerate(optimizer_checks.errors(info))]
        return todo

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        info, dtype = optimizer_checks.all_optimizers()[case.op], getattr(torch, case.dtype)
        _, variant, sample = todo
        return [optimizer_checks.check(info, variant, sample, dtype, device)]


@dataclass(frozen=True)
class DTensorSuite(OpSuite):
    """The operators on sharded tensors. A case runs in ranks of its own, so it is one thing to do."""

    def __hash__(self) -> int:
        return hash(self.title)

    def todo(self, case: Case, variants: frozenset[str], most: int | None) -> list[Todo]:
        return [(0, "shards", (variants, most))]

    def run(self, case: Case, todo: Todo, device: str) -> Iterable[Check]:
        variants, most = todo[2]
        return dtensor_checks.check(case.op, case.dtype, variants, most, device)


SUITES: dict[str, Suite] = {
    "ops": OPERATORS,
    "refs": REFERENCES,
    "extensions": EXTENSIONS,
    "tracing": TracingSuite(
        "Tracing",
        "The operator database under torch's own checkers of operators; whether they end as on the CPU.",
        op_checks.all_ops,
        tracing_checks.MEANING,
    ),
    "modules": ModuleSuite(),
    "optimizers": OptimizerSuite(),
    "dtensor": DTensorSuite(
        "Sharded tensors",
        "The operator database on DTensors over four ranks, with torch's own `DTensorConverter`: every tensor replicated, "
        "or sharded on a dimension that four divides, in all combinations. What torch has no rule for raises on the CPU too.",
        op_checks.all_ops,
        dtensor_checks.MEANING,
    ),
}
"""All suites by their names."""
