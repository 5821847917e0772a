"""Memory history and snapshots of ``torch.neuron``, as torch's own tools read them.

The spellings, arguments and the snapshot's layout are torch.cuda.memory's, so pytorch.org/memory_viz and
``python -m torch.cuda._memory_viz`` open what :func:`_dump_snapshot` writes. Beyond torch's keys, each event and
each used block has ``user_metadata``, the operator that it was allocated for, and each event ``simulated_ns``,
when host and stream have got there in simulated time.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from typing import Any

from neuron_dist import _C

__all__ = ["_dump_snapshot", "_record_memory_history", "_snapshot"]

_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}
_STACKS = ("python", "all")


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Starts (or with ``enabled=None`` ends) the history of all devices of this process.

    ``enabled``: ``"state"`` keeps stacks of what is held, ``"all"`` (or True) also the last ``max_entries`` events.
    ``context``: for which of these stacks are kept; each of ``"state"``, ``"alloc"``, ``"all"`` includes the one
    before. ``stacks``: ``"python"``, or ``"all"`` for C++ frames too, which costs more. ``skip_actions``: events to
    leave out, such as ``"free_requested"``. ``device`` is taken for torch.cuda's sake: as there, all devices are
    recorded. Nothing is compiled and no annotations are kept, so the other two flags change nothing.

    Raises ValueError for another word, or for less than one entry.
    """
    if isinstance(enabled, bool):  # torch.cuda's older form
        enabled = "all" if enabled else None
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled is {enabled!r}, expected None, 'state' or 'all'")
    if context not in _CONTEXTS:
        raise ValueError(f"context is {context!r}, expected None, 'state', 'alloc' or 'all'")
    if stacks not in _STACKS:
        raise ValueError(f"stacks is {stacks!r}, expected 'python' or 'all'")
    if max_entries < 1:
        raise ValueError(f"max_entries is {max_entries}, expected at least 1")
    skipped = list(skip_actions or ())
    for action in skipped:
        if action not in (known := _C._memory_actions()):
            raise ValueError(f"skip_actions has {action!r}, expected some of {', '.join(known)}")
    if clear_history:
        _C._clear_memory_history()
    _C._record_memory_history(
        events=enabled == "all",
        contexts=_CONTEXTS[context] if enabled else 0,
        cpp_frames=stacks == "all",
        max_events=min(max_entries, sys.maxsize),
        skipped=skipped,
    )


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """All segments and blocks of this process's devices and, if they are recorded, the events so far.

    ``device`` is taken for torch.cuda's sake: as there, all devices are in it.
    """
    snapshot = _C._memory_snapshot()
    stats = _C._memory_stats(_C._current_device())
    snapshot["allocator_settings"] = {"backend": "neuron", "num_ooms": stats["num_ooms"]}
    snapshot["external_annotations"] = []
    if augment_with_fx_traces:
        from torch._utils import _augment_memory_snapshot_stack_traces

        snapshot = dict(_augment_memory_snapshot_stack_traces(snapshot))  # type: ignore[arg-type]
    return snapshot


def _dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes :func:`_snapshot` to ``filename``, for pytorch.org/memory_viz."""
    with open(filename, "wb") as out:
        pickle.dump(_snapshot(augment_with_fx_traces=augment_with_fx_traces), out, protocol=4)
