"""One process's part in simulated time, from its first use of the device or its first process group to its end: the
clock's switch, the trace's file, and where training steps end.

    NEURON_DIST_SIMULATION   ``on`` (default) or ``off``: no clock, no trace, no summary
    NEURON_DIST_TRACE        a folder: each rank writes its trace there
    NEURON_DIST_TRACE_MIB    the most that a rank writes, in MiB (1024)
    NEURON_DIST_SUMMARY      ``on`` (default) or ``off``: rank 0 of a run that trained ends with its figures, on stderr
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from neuron_dist import _C

if TYPE_CHECKING:
    from collectives.topology import Cluster

__all__ = ["end_step", "join", "start", "steps_end_here", "summary", "trace_to"]

_DEFAULT_MIB = 1024
_RUN_KEY = "neuron_dist/run"
_PATIENCE_S = 0.5
"""How long the rank that sums up waits for others to end their last step."""


class _State:
    started = False
    joined = False
    rank = 0
    world_size = 1
    trace: Path | None = None
    """The file that is being written."""
    stepping: weakref.ref[torch.optim.Optimizer] | None = None
    """The optimizer whose steps are the run's; the first one that steps."""
    by_caller = False
    summed_up = False
    """Somebody has printed the figures, or will."""


_state = _State()


def start() -> None:
    """Called at the first use of a device or a process group; the second and later calls do nothing."""
    if _state.started:
        return
    _state.started = True
    _C._set_simulation(_switch("NEURON_DIST_SIMULATION", "on"))
    _switch("NEURON_DIST_SUMMARY", "on")  # a wrong value shall show now, not at the end
    if not _C._simulation():
        return
    register_optimizer_step_pre_hook(_name_owners)
    register_optimizer_step_post_hook(_after_step)
    if folder := os.environ.get("NEURON_DIST_TRACE"):
        trace_to(Path(folder))
    atexit.register(_finish)


def trace_to(folder: Path) -> None:
    """Writes this rank's trace into ``folder`` from here on, unless one is being written; to be called before the
    first process group is made."""
    start()
    if _state.trace is not None or not _C._simulation():
        return
    # Ranks that torchrun started know their number now; others learn it from their process group.
    known = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    _state.rank = int(os.environ["RANK"]) if known else 0
    _state.world_size = int(os.environ["WORLD_SIZE"]) if known else 1
    name = None if known else f"pid_{os.getpid()}.trace"
    _start_trace(folder, name, _run_by_environment())


def join(ranks: Sequence[int], group_rank: int, store: Any) -> None:
    """Called with the global ranks of each process group before it is made."""
    from neuron_dist.distributed.plans import cluster_of
    from neuron_dist.simulation.roofline import Roofline

    start()
    if _state.joined:
        return
    _state.joined = True
    cluster = cluster_of(max(ranks))
    _C._set_rates(Roofline.of(cluster).rates())
    _state.rank, _state.world_size = ranks[group_rank], max(ranks) + 1
    if _state.trace is not None:
        from neuron_dist.simulation.trace import file_name

        if _state.rank == 0:
            store.set(_RUN_KEY, f"{os.getpid()}-{time.time_ns()}")
        run = store.get(_RUN_KEY).decode()
        target = _state.trace.with_name(file_name(_state.rank))
        if target != _state.trace:
            _state.trace = _state.trace.rename(target)
        if _state.rank == 0:
            _remove_others(target.parent, _state.world_size)
        _C._trace_text(0, json.dumps(_header(cluster, run)))


def end_step() -> None:
    """A training step ends here, in simulated time: after the latest stream of the device.

    From the first call on the program says where its steps end. Without one, a step ends when the optimizer that
    stepped first has stepped.
    """
    _state.by_caller = True
    if _C._simulation():
        _C._end_step()


def steps_end_here() -> None:
    """From now on steps end at :func:`end_step` only."""
    _state.by_caller = True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if _state.stepping is None:
        _state.stepping = weakref.ref(optimizer)
    _name_owners(optimizer)
    if not _state.by_caller and _state.stepping() in (optimizer, None):
        _state.stepping = weakref.ref(optimizer)
        _C._end_step()


def _name_owners(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Accounts parameters, gradients and optimizer state to themselves rather than to what allocated them: before a
    step, since gradients may be gone after it, and after it, since the first one makes the state."""
    from torch._subclasses.fake_tensor import is_fake

    def address(tensor: torch.Tensor) -> int:
        """Where its storage begins if it has one on the device, else 0."""
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if local.device.type != "neuron" or local.layout != torch.strided or is_fake(local):
            return 0
        return local.untyped_storage().data_ptr()

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states = [t for p in parameters for t in optimizer.state.get(p, {}).values()]
    owned = (
        ("parameters", parameters),
        ("gradients", [p.grad for p in parameters]),
        ("optimizer state", states),
    )
    for name, tensors in owned:
        _C._set_owner([address(t) for t in tensors if isinstance(t, torch.Tensor)], name)


def _start_trace(folder: Path, name: str | None, run: str) -> None:
    from neuron_dist.distributed.plans import cluster_of
    from neuron_dist.simulation.trace import file_name

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the trace (NEURON_DIST_TRACE, or a recipe's trace:) cannot be written to {folder}: {error.strerror}; "
            "expected a folder that can be made"
        ) from None
    _state.trace = folder / (name or file_name(_state.rank))
    header = _header(cluster_of(_state.world_size - 1), run)
    _C._start_trace(str(_state.trace), json.dumps(header), _most_mib() << 20)


def _header(cluster: Cluster, run: str) -> dict[str, Any]:
    from neuron_dist.simulation.trace import FORMAT

    return {
        "format": FORMAT,
        "rank": _state.rank,
        "world_size": _state.world_size,
        "run": run,
        "cluster": {
            "product": os.environ.get("NEURON_DIST_CLUSTER") or cluster.product,
            "instances": cluster.instances,
            "lnc": cluster.lnc,
            "digest": cluster.digest,
            "name": str(cluster),
        },
        "hbm_bytes": cluster.hbm_bytes_per_core,
        "dtypes": _dtypes(),
        "torch": torch.__version__,
        "command": sys.argv,
    }


def _dtypes() -> dict[int, str]:
    """Names of dtypes by their number in the native core."""
    return dict(_C._dtypes())


def _run_by_environment() -> str:
    keys = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    known = [os.environ.get(key, "") for key in keys]
    return ":".join(known) if any(known) else f"{os.getpid()}-{time.time_ns()}"


def _remove_others(folder: Path, world_size: int) -> None:
    """Takes away what an earlier run of more ranks left: the folder is this run's."""
    from neuron_dist.simulation.trace import file_name

    mine = {file_name(rank) for rank in range(world_size)}
    for file in folder.glob("rank_*.trace"):
        if file.name not in mine:
            file.unlink()


def summary() -> str:
    """The figures of this run, for its end: ten lines of what it would take on the simulated cluster; '' where
    nothing was simulated. To be called on one rank; a process that has called it prints nothing when it ends."""
    _state.summed_up = True
    ledgers = _level_ledgers() if _C._simulation() else []
    if not any(ledger["steps"] for ledger in ledgers):
        return ""
    from neuron_dist.distributed.plans import cluster_of
    from neuron_dist.simulation.ledger import figures_of
    from neuron_dist.simulation.summary import ten_lines

    reporting = sys.modules.get("neuron_dist.fidelity.reporting")
    counts = reporting.counts() if reporting is not None else []
    figures = figures_of(
        ledgers,
        cluster_of(_state.world_size - 1),
        reports=sum(count.count for count in counts),
        sites=len(counts),
        trace=str(_state.trace.parent) if _state.trace is not None else "",
    )
    return ten_lines(figures)


def _level_ledgers() -> list[dict[str, Any]]:
    """The ledgers of this rank and its peers, who may be finishing their last step while this one ends."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        ledgers = _C._figures()
        if len({len(each["steps"]) for each in ledgers}) == 1 or time.monotonic() > deadline:
            return ledgers
        time.sleep(0.01)


def _finish() -> None:
    if (
        _state.rank == 0
        and not _state.summed_up
        and _switch("NEURON_DIST_SUMMARY", "on")
        and (text := summary())
    ):
        print(f"\n{text}\n", file=sys.stderr, flush=True)
    if _state.trace is not None:
        _trace_fidelity()
        _C._stop_trace()
        if not _state.joined and _state.trace.name.startswith("pid_"):
            from neuron_dist.simulation.trace import file_name

            _state.trace.rename(_state.trace.with_name(file_name(0)))


def _trace_fidelity() -> None:
    reporting = sys.modules.get("neuron_dist.fidelity.reporting")
    if reporting is not None:
        from neuron_dist.simulation.trace import Text

        for count in reporting.counts():
            _C._trace_text(Text.SITE, json.dumps(count.to_dict()))


def _most_mib() -> int:
    value = os.environ.get("NEURON_DIST_TRACE_MIB", str(_DEFAULT_MIB))
    if not value.isdigit() or int(value) < 1:
        raise ValueError(
            f"NEURON_DIST_TRACE_MIB is {value!r}, expected a whole number of MiB from 1 up"
        )
    return int(value)


def _switch(name: str, default: str) -> bool:
    value = os.environ.get(name, default)
    if value not in ("on", "off"):
        raise ValueError(f"{name} is {value!r}, expected on or off")
    return value == "on"
