"""Memory of ``torch.neuron``: the simulated HBM of one logical core, with a caching allocator's true counts.

allocated: held by tensors. active: allocated, or waiting for a stream; execution is eager, so the same here.
reserved: taken from the HBM, by tensors or by the cache. allocated <= active <= reserved <= capacity.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from neuron_dist import _C
from neuron_dist.device.memory_history import (
    _dump_snapshot,
    _record_memory_history,
    _snapshot,
)

__all__ = [
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "empty_cache",
    "fragmentation",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def _at(device: Any) -> int:
    from neuron_dist.device import _index

    return _C._checked_index(_index(device))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The allocator's counts: ``{"active_bytes": {"all": {"current": ..., "peak": ...}, ...}, ...}``."""
    return _C._memory_stats(_at(device))


def memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """The allocator's counts in both spellings that programs read.

    Flat, as torch.cuda has them: ``active_bytes.all.peak``, ``num_ooms``. And nested, as early TorchNeuron had
    them: ``stats["allocated_bytes"]["peak"]``.
    """
    nested = memory_stats_as_nested_dict(device)
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            for pool, counts in value.items():
                for key, number in counts.items():
                    flat[f"{name}.{pool}.{key}"] = number
        else:
            flat[name] = value
    stats: OrderedDict[str, Any] = OrderedDict(sorted(flat.items()))
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        stats[name] = nested[name]["all"]
    stats["allocation_requests"] = nested["allocation"]["all"]["allocated"]
    return stats


def _stat(device: Any, name: str, key: str) -> int:
    return memory_stats_as_nested_dict(device)[name]["all"][key]


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors now."""
    return _stat(device, "allocated_bytes", "current")


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes held by tensors since the start or :func:`reset_peak_memory_stats`."""
    return _stat(device, "allocated_bytes", "peak")


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the HBM now, by tensors or by the cache."""
    return _stat(device, "reserved_bytes", "current")


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes taken from the HBM since the start or :func:`reset_peak_memory_stats`."""
    return _stat(device, "reserved_bytes", "peak")


def reset_peak_memory_stats(device: Any = None) -> None:
    """Peaks start again from what is held now."""
    _C._reset_peak_memory_stats(_at(device))


reset_max_memory_allocated = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sums (allocated, freed, retries, OOMs) start again from zero."""
    _C._reset_accumulated_memory_stats(_at(device))


def empty_cache() -> None:
    """Gives cached memory that no tensor holds back to the system."""
    _C._empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the HBM. Cached memory counts as used, as in torch.cuda."""
    return _C._memory_info(_at(device))


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """The segments of all devices of this process, with their blocks."""
    return _C._memory_snapshot()["segments"]


def fragmentation(device: Any = None) -> float:
    """How scattered the cache's free memory is: 0 when it is one block (or none), near 1 when it is crumbs.

    It is 1 - (largest free block) / (all free blocks); a request above the largest needs new memory, however much
    is free in all.
    """
    largest, free = _C._free_blocks(_at(device))
    return 1 - largest / free if free else 0.0


_fractions: dict[int, float] = {}


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Lets this process use only a share of the HBM; above it, allocation raises torch.OutOfMemoryError."""
    at = _at(device)
    _C._set_memory_fraction(float(fraction), at)
    _fractions[at] = float(fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """What :func:`set_per_process_memory_fraction` set; 1.0 unless it did."""
    return _fractions.get(_at(device), 1.0)


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _size(value: float) -> str:
    for unit in _UNITS:
        if abs(value) < 1024 * 8 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of :func:`memory_stats` to print."""
    at = _at(device)
    nested = memory_stats_as_nested_dict(at)
    rows = [
        ("Allocated memory", "allocated_bytes", True),
        ("Active memory", "active_bytes", True),
        ("Requested memory", "requested_bytes", True),
        ("Reserved memory", "reserved_bytes", True),
        ("Non-releasable memory", "inactive_split_bytes", True),
        ("Allocations", "allocation", False),
        ("Segments", "segment", False),
        ("Non-releasable allocs", "inactive_split", False),
    ]
    pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
    line = "+" + "-" * 77 + "+"
    out = [
        line,
        "|" + f"neuron:{at} memory, {_C._cluster()[2]}".center(77) + "|",
        "|"
        + f"OOMs: {nested['num_ooms']}    retries after freeing the cache: {nested['num_alloc_retries']}".center(
            77
        )
        + "|",
        line,
        f"| {'Metric':<24}| {'Current':>11} | {'Peak':>11} | {'Total in':>10} | {'Total out':>9} |",
        line,
    ]
    for title, name, is_bytes in rows:
        for pool in pools:
            counts = nested[name][pool]
            cells = [
                _size(counts[k]) if is_bytes else str(counts[k])
                for k in ("current", "peak", "allocated", "freed")
            ]
            label = title if pool == "all" else f"  {pool.replace('_', ' ')}"
            out.append(
                f"| {label:<24}| {cells[0]:>11} | {cells[1]:>11} | {cells[2]:>10} | {cells[3]:>9} |"
            )
    out.append(line)
    largest, free = _C._free_blocks(at)
    text = f"Free in the cache: {_size(free)}, largest block {_size(largest)}, fragmentation {fragmentation(at):.0%}"
    out += ["|" + text.center(77) + "|", line]
    return "\n".join(out)
