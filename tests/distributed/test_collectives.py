"""Every collective over ranks, dtypes, reductions, shapes and layouts, against a single-process reference."""

import pytest
import torch

from tests.distributed.cases import Case, cases_of, run_cases
from tests.distributed.inputs import FLOAT8, UNSIGNED
from tests.distributed.operations import OPERATIONS
from tests.distributed.target import BACKEND, DEVICES, launch

FAMILIES = {
    "all_reduce": {"ops": ["all_reduce", "all_reduce_coalesced"], "reduces": True},
    "reduce": {"ops": ["reduce"], "reduces": True, "rooted": True},
    "reduce_scatter": {"ops": ["reduce_scatter", "reduce_scatter_uneven"], "reduces": True},
    "reduce_scatter_single": {
        "ops": ["reduce_scatter_tensor", "reduce_scatter_stack", "reduce_scatter_single"],
        "reduces": True,
    },
    "all_gather": {
        "ops": [
            "all_gather",
            "all_gather_uneven",
            "all_gather_into_tensor",
            "all_gather_into_stack",
            "all_gather_single",
        ]
    },
    "rooted": {"ops": ["broadcast", "gather", "scatter"], "rooted": True},
    "all_to_all": {
        "ops": ["all_to_all", "all_to_all_uneven", "all_to_all_single", "all_to_all_single_splits"],
    },
}

GLOO_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
GLOO_OPS = set(OPERATIONS) - {
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_uneven",
    "all_gather_uneven",
    "all_gather_into_stack",
    "reduce_scatter_stack",
    "reduce_scatter_uneven",
}


def gloo_can(case: Case, world_size: int) -> bool:
    """Whether Gloo has what the case asks for and does it right."""
    reductions = ("", "SUM", "PRODUCT", "MIN", "MAX")
    return (
        case.op in GLOO_OPS
        and case.dtype in GLOO_DTYPES
        and case.layout in ("contiguous", "offset")
        and case.reduction in reductions
        and 0 not in case.shape
        and not (case.shape == () and case.op.endswith(("_single", "_tensor")))
        and not (world_size == 1 and case.op.startswith("reduce_scatter_"))  # ends the process
    )


def describe(results, count):
    """The failures of all ranks, each once, with the ranks that met it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, failures in enumerate(results):
        for failure in failures:
            ranks_of.setdefault(failure, []).append(rank)
    lines = [f"{failure} on ranks {ranks}" for failure, ranks in ranks_of.items()]
    return f"{len(lines)} failures in {count} cases:\n" + "\n".join(lines[:40])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_collective(family, world_size, device):
    options = dict(FAMILIES[family])
    cases = [case for op in options.pop("ops") for case in cases_of(op, world_size, **options)]
    if BACKEND == "gloo":
        cases = [case for case in cases if gloo_can(case, world_size)]
    results = launch(
        world_size, run_cases, cases, OPERATIONS, device, BACKEND != "gloo", timeout=280
    )
    assert not any(results), describe(results, len(cases))


def test_every_operation_is_in_a_family():
    assert {op for family in FAMILIES.values() for op in family["ops"]} == set(OPERATIONS)


def test_dtypes_are_complete():
    every = {
        getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)
    }
    from tests.distributed.inputs import ALL_DTYPES

    left_out = {str(d).removeprefix("torch.") for d in every - set(ALL_DTYPES)}
    assert not {
        name
        for name in left_out
        if name.startswith(("float8", "uint16", "uint32", "uint64", "bfloat"))
    }
    assert set(FLOAT8) < every and set(UNSIGNED) < every
