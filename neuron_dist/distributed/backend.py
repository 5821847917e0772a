"""Register ``neuron`` with ``torch.distributed`` and create its process groups."""

from __future__ import annotations

import atexit
import copy
import os
import sys
import threading
import traceback
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from neuron_dist import _C
from neuron_dist.device import bind_local_rank
from neuron_dist.distributed import symmetric_memory
from neuron_dist.distributed.plans import Plans
from neuron_dist.simulation import session

__all__ = ["register"]


def register() -> None:
    """Makes ``init_process_group("neuron")`` and, for device neuron, ``init_process_group()`` work.

    The backend serves devices ``neuron`` and ``cpu``; Gloo stays the default for ``cpu``. The backend ``fake``
    is extended to device ``neuron``, since frameworks use it for mesh dimensions of size 1.
    """
    if not dist.is_available() or "neuron" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("neuron", _create, extended_api=True, devices=["neuron", "cpu"])
    _extend_fake()
    symmetric_memory.register()


def _extend_fake() -> None:
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers "fake"

    capability = dist.Backend.backend_capability["fake"]
    if "neuron" not in capability:
        capability.append("neuron")


def _create(opts: Any, pg_options: Any) -> Any:
    """Creator for ``register_backend``; ``opts`` is c10d's ``DistributedBackendOptions``.

    ``pg_options`` may be a :class:`neuron_dist.distributed.Options` (``algorithm``: the schedule of this group's
    reductions; ``fp32_accumulation``: see docs/architecture.md); raises ``TypeError`` for others.
    """
    if pg_options is None:
        options = _C.Options()
        options.fp32_accumulation = _flag("NEURON_DIST_FP32_ACCUMULATION")
    elif isinstance(pg_options, _C.Options):
        options = copy.copy(pg_options)
    else:
        raise TypeError(
            f"pg_options is {type(pg_options).__name__}, expected neuron_dist.distributed.Options for backend neuron"
        )
    timeout = opts.timeout
    options._timeout = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    options.group_name = opts.group_id or "default"
    options.global_ranks_in_group = list(opts.global_ranks_in_group)
    options.device_index = _bind_device(opts)
    ranks = options.global_ranks_in_group or list(range(opts.group_size))
    store = _store_of_this_attempt(opts.store)
    session.join(ranks, opts.group_rank, store)
    group = _C.create_process_group(
        store, opts.group_rank, opts.group_size, options, stack_provider=_main_thread_stack
    )
    plans = Plans(ranks, opts.group_rank, options.algorithm or None)
    group._set_planner(plans.order_of_additions)
    group._set_pricer(plans.price)
    _watch(group, tuple(ranks))
    return group


def _store_of_this_attempt(store: Any) -> Any:
    """``store``, without what ranks of an earlier attempt have left: torch's elastic agent keeps its store when it
    starts all ranks again."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return store if attempt == "0" else dist.PrefixStore(f"attempt_{attempt}", store)


def _watch(group: Any, ranks: tuple[int, ...]) -> None:
    """Lets the fidelity profile see the group's calls, beginning with its creation."""
    from neuron_dist.fidelity.hook import fidelity_hook

    hook = fidelity_hook(dist.get_world_size() if dist.is_initialized() else len(ranks))
    if hook is None:
        return

    def watcher(op: str, reduction: str, dtype: str, numel: int, flags: int) -> bool:
        return hook(op, reduction, dtype, numel, flags, ranks)

    hook("new_group", "", "", 0, 0, ranks)
    group._set_watcher(watcher)


def _bind_device(opts: Any) -> int:
    """Gives this process the one device that it has from now on, as TorchNeuron does, and returns its index.

    ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` decide (torchrun sets them). Without them the ranks of the first
    group stand on one machine, since ranks on several are refused, so its own numbers are the local ones.
    """
    global _device
    if _device is None:
        local_rank = int(os.environ.get("LOCAL_RANK", opts.group_rank))
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", opts.group_size))
        bind_local_rank(local_rank, local_world_size)
        _device = local_rank
    return _device


_device: int | None = None


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{name} is {value!r}, expected 0 or 1")
    return value == "1"


def _main_thread_stack() -> str:
    """The main thread's stack, for a peer that waits for this rank in vain."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame, limit=12)) if frame is not None else ""


atexit.register(_C.retire_engine)
