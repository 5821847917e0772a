"""What a rank tells the launcher that forked it. Ranks that nobody listens to, as torchrun's, send nothing.

A report is a dictionary, pickled into one packet: ``kind``, ``rank``, and what belongs to the kind.

    failed    time_ns (CLOCK_MONOTONIC), traceback (text), error (its last line), of_a_peer (whether another's end
              is what it tells of)
    step      step, steps (the last one's number), loss, seconds (a step), left_s (to the end), simulated_ns (a step);
              None stands for what is not known or not simulated
"""

from __future__ import annotations

import pickle
import socket
from typing import Any

__all__ = ["connect", "progress_is_shown", "read", "send"]

_MAX_BYTES = 1 << 16
_socket: socket.socket | None = None
_shows_progress = False


def connect(reports: socket.socket, shows_progress: bool) -> None:
    """Sends the reports of this process and its children to the socket ``reports``, of packets. The launcher may show
    progress itself, on one line, so that step lines and the like need not be printed."""
    global _socket, _shows_progress
    _socket, _shows_progress = reports, shows_progress


def progress_is_shown() -> bool:
    """Whether a launcher shows the run's progress on a live line."""
    return _shows_progress


def send(kind: str, rank: int, **fields: Any) -> bool:
    """Sends a report; false where there is no launcher, or no longer."""
    if _socket is None:
        return False
    try:
        _socket.send(pickle.dumps({"kind": kind, "rank": rank, **fields}))
    except OSError:
        return False
    return True


def read(reports: socket.socket) -> dict[str, Any] | None:
    """The next report on the launcher's end of the socket, None where all others have closed."""
    data = reports.recv(_MAX_BYTES)
    return pickle.loads(data) if data else None
