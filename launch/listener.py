"""The launcher's ear: a thread that reads what ranks report and, where a live line is shown, what they print."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from typing import Any

from neuron_dist import reports

__all__ = ["Listener"]


class Listener:
    """Passes reports to the handler of their kind, and whole lines of ``output`` (a pipe's end) to ``write``."""

    def __init__(
        self,
        source: socket.socket,
        handlers: Mapping[str, Callable[[dict[str, Any]], None]],
        output: int | None = None,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self._source: socket.socket | None = source
        self._handlers = handlers
        self._output = output
        self._write = write or _to_stderr
        self._line = b""
        self._lock = threading.Lock()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def print(self, text: str) -> None:
        """Prints lines of the launcher's own, after all that has been heard."""
        self.drain()
        self._write(text)

    def drain(self) -> None:
        """Takes in all that has been sent so far."""
        while self._take(self._ready(0)):
            pass

    def close(self) -> None:
        """Takes in the rest and ends, with its sources; to be called when the ranks have ended."""
        self._waker.close()
        self._thread.join()
        self.drain()
        self._wake.close()
        if self._source is not None:
            self._source.close()
        if self._output is not None:
            os.close(self._output)
        if self._line:
            self._write(self._line.decode(errors="replace"))

    def _listen(self) -> None:
        while self._wake not in (ready := self._ready(None)):
            self._take(ready)

    def _ready(self, timeout_s: float | None) -> list[Any]:
        sources: list[Any] = [source for source in (self._source, self._output) if source is not None]
        return wait(sources if timeout_s == 0 else [*sources, self._wake], timeout_s)

    def _take(self, ready: list[Any]) -> bool:
        """Takes one report, and one piece of output; whether there was anything."""
        with self._lock:  # it may be gone already: the thread and drain() look at the same time
            if self._source in ready and self._source is not None and wait([self._source], 0):
                if (report := reports.read(self._source)) is None:
                    self._source.close()
                    self._source = None
                else:
                    self._handlers[report["kind"]](report)
            if self._output in ready and self._output is not None and wait([self._output], 0):
                if data := os.read(self._output, 1 << 16):
                    *lines, self._line = (self._line + data).split(b"\n")
                    if lines:
                        self._write(b"\n".join(lines).decode(errors="replace"))
                else:
                    os.close(self._output)
                    self._output = None
            return bool(ready)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
