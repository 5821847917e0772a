"""``torch.neuron``: devices, streams and events, memory and random numbers of the simulated Trainium.

The spellings are torch.cuda's and AWS's. One logical NeuronCore is one device. Without a process group a
process has all devices of its cluster's instance; with one, it has a single device whose index is its local rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from neuron_dist import _C
from neuron_dist.compile import metrics
from neuron_dist.device.memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from neuron_dist.device.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from neuron_dist.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    query,
    record_event,
    set_stream,
    stream,
    synchronize,
    wait_event,
    wait_stream,
)

__all__ = [
    "Event",
    "Stream",
    "bind_local_rank",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "query",
    "record_event",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "unbind_local_rank",
    "wait_event",
    "wait_stream",
]

Device = torch.device | int | str | None


class DeviceProperties(NamedTuple):
    """What :func:`get_device_properties` tells of a device."""

    name: str
    """The instance family: trn1, trn1n, trn2, trn2u, trn3, ..."""
    total_memory: int
    """HBM that one logical core may fill, in bytes."""


def __getattr__(name: str) -> Any:
    # torch.utils.checkpoint looks here, and not at is_initialized(), before it keeps the device's RNG state.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}")


def is_available() -> bool:
    """Whether the cluster of the environment can be loaded. Never raises, and does not count as use of a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether a device of this process is in use: by a tensor, :func:`init` or a process group."""
    return _C._is_initialized() and not _C._is_in_bad_fork()


def init() -> None:
    """Opens the current device's memory. Using the device does that by itself."""
    _C._init(-1)


def _is_in_bad_fork() -> bool:
    return _C._is_in_bad_fork()


def device_count() -> int:
    """Devices of this process's index space: visible cores, or LOCAL_WORLD_SIZE with a process group. Before the first
    use of a device, those that the environment gives now."""
    if _C._is_initialized() or _C._is_bound():
        return _C._device_count()
    from neuron_dist.device import _cluster

    return _cluster.count()


def current_device() -> int:
    """Index of the current device: LOCAL_RANK with a process group."""
    return _C._current_device()


def _index(device: Device, optional: bool = True) -> int:
    """The index that ``device`` names; -1 for none."""
    if device is None and optional:
        return -1
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "neuron":
            raise ValueError(f"Expected a neuron device, but got: {device}")
        return -1 if device.index is None else device.index
    raise TypeError(f"Expected a torch.device, an int or a str, but got: {device!r}")


def set_device(device: Device) -> None:
    """Makes ``device`` the current one. Rather use ``neuron`` without an index, or :class:`device`."""
    index = _index(device)
    if index < 0:
        return
    count = device_count()
    if index >= count:
        raise ValueError(
            f"Invalid device id: {index}. Valid range is 0 to {count - 1}; see torch.neuron.device_count()"
        )
    _C._set_device(index)


class device:
    """Context in which ``device`` is the current one. Negative indices and None change nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C._current_device()
            _C._set_device(self.idx)

    def __exit__(self, *exc: object) -> None:
        if self.idx >= 0:
            _C._set_device(self.prev_idx)


class device_of(device):
    """Context in which the device of ``obj`` is the current one, if it is a neuron tensor or storage."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(obj.device if obj.device.type == "neuron" else None)


def get_device_name(device: Device = None) -> str:
    """``neuron:<index>``: the device has no marketing name."""
    return f"neuron:{_C._checked_index(_index(device))}"


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Family and memory of a device."""
    from neuron_dist.device import _cluster

    _C._checked_index(_index(device))
    return DeviceProperties(_cluster.current().family, _C._cluster()[1])


def get_device_capability(device: Device = None) -> None:
    """Trainium has no compute capability; see :func:`get_device_properties`."""
    raise NotImplementedError(
        "torch.neuron devices have no compute capability; torch.neuron.get_device_properties().name is the family"
    )


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast('neuron', dtype=...)`` takes."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True."""
    return True


def get_dynamo_metrics() -> dict[str, Any]:
    """Graphs that ``torch.compile`` has made for the device: name -> id, node count, collectives, time to compile.

    The values are :class:`neuron_dist.compile.metrics.GraphMetrics`.
    """
    return metrics.read()


def reset_dynamo_metrics() -> None:
    """Forgets what :func:`get_dynamo_metrics` tells."""
    metrics.reset()


def _sleep(cycles: int) -> None:
    """Accepted for upstream tests; does nothing."""


def bind_local_rank(local_rank: int, local_world_size: int) -> None:
    """Gives this process its one device: index ``local_rank`` of ``local_world_size``.

    The neuron backend calls it when its first process group is made; calling it again changes nothing. Raises
    RuntimeError if tensors already live on another index.
    """
    _C._bind_local_rank(local_rank, local_world_size)


def unbind_local_rank() -> None:
    """Undoes :func:`bind_local_rank`: the process has all devices of its instance again."""
    _C._unbind_local_rank()
