"""A rank's streams: captured into memory that the test process reads, and the terminal for a debugger.

The ranks of a launch inherit the test process's own stdin, stdout and stderr, and a memfd: who holds the lock on its
first byte has the terminal. The lock ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from _pytest.capture import EncodedFile, FDCapture, MultiCapture, SysCapture, TeeCaptureIO

__all__ = ["Terminal", "capture"]

_NOBODY = 0xFFFF


class Terminal:
    """The ranks' turn-taking at the terminal; the test process holds one, and each rank."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.streams, self.lock = tuple(descriptors[:3]), descriptors[3]

    @classmethod
    def of_this_process(cls, streams: Sequence[int]) -> Terminal:
        """A new one around the descriptors of stdin, stdout and stderr."""
        lock = os.memfd_create("terminal")
        os.write(lock, _NOBODY.to_bytes(2, "little") * 2)
        return cls([*streams, lock])

    @property
    def descriptors(self) -> list[int]:
        return [*self.streams, self.lock]

    def acquire(self, rank: int) -> None:
        """Waits for the terminal."""
        fcntl.lockf(self.lock, fcntl.LOCK_EX, 1, 0)
        self._write(0, rank)

    def release(self) -> None:
        self._write(0, _NOBODY)
        fcntl.lockf(self.lock, fcntl.LOCK_UN, 1, 0)

    def claim(self, rank: int) -> bool:
        """Whether ``rank`` is the first to ask: that one is debugged after it has failed."""
        fcntl.lockf(self.lock, fcntl.LOCK_EX, 1, 1)
        first = self._read(2) in (_NOBODY, rank)
        if first:
            self._write(2, rank)
        fcntl.lockf(self.lock, fcntl.LOCK_UN, 1, 1)
        return first

    def holder(self) -> int | None:
        """The rank that has the terminal. For the test process, which never takes it itself."""
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except BlockingIOError:
            rank = self._read(0)
            return None if rank == _NOBODY else rank
        fcntl.lockf(self.lock, fcntl.LOCK_UN, 1, 0)
        return None

    def unclaim(self) -> None:
        """For the next test."""
        self._write(2, _NOBODY)

    def _read(self, at: int) -> int:
        return int.from_bytes(os.pread(self.lock, 2, at), "little")

    def _write(self, at: int, value: int) -> None:
        os.pwrite(self.lock, value.to_bytes(2, "little"), at)


def capture(
    method: str, terminal: Terminal, kept: Sequence[int], rank: int, world_size: int
) -> MultiCapture[str]:
    """pytest's capture of this rank, by the ``--capture`` method: what is captured goes to the descriptors ``kept``,
    and what is not, to the terminal, line by line with the rank in front."""
    for stream, own in enumerate(terminal.streams):
        os.dup2(own, stream)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    sys.stdout, sys.stderr = _Prefixed(1, rank), _Prefixed(2, rank)
    in_ = _Stdin(terminal, rank, world_size)
    if method == "no":
        return MultiCapture(in_=in_, out=None, err=None)
    if method == "tee-sys":
        tees = [SysCapture(fd, TeeCaptureIO(s)) for fd, s in ((1, sys.stdout), (2, sys.stderr))]
        return MultiCapture(in_=in_, out=tees[0], err=tees[1])
    return MultiCapture(in_=in_, out=_Kept(1, kept[0]), err=_Kept(2, kept[1]))


class _Kept(FDCapture):
    """Captures into a descriptor, from which nothing is removed: if the rank dies, the test process has it all."""

    def __init__(self, targetfd: int, kept: int) -> None:
        super().__init__(targetfd)
        self.tmpfile.close()
        file = os.fdopen(kept, "r+b", buffering=0, closefd=False)
        self.tmpfile = EncodedFile(file, encoding="utf-8", errors="replace", newline="", write_through=True)  # type: ignore[arg-type]
        self.syscapture = SysCapture(targetfd, self.tmpfile)
        self.kept, self.read = kept, 0

    def snap(self) -> str:
        size = os.fstat(self.kept).st_size
        new = os.pread(self.kept, size - self.read, self.read)
        self.read = size
        return new.decode(errors="replace")


class _Stdin(FDCapture):
    """Reads nothing, but while a debugger has it: then it is the terminal, which one rank has at a time."""

    def __init__(self, terminal: Terminal, rank: int, world_size: int) -> None:
        super().__init__(0)
        self.terminal, self.rank, self.world_size = terminal, rank, world_size
        self.streams: tuple[Any, Any] | None = None

    def suspend(self) -> None:
        if self._state == "suspended":
            return
        self.terminal.acquire(self.rank)
        super().suspend()
        self.streams = sys.stdout, sys.stderr
        files = (io.FileIO(fd, "w", closefd=False) for fd in (1, 2))
        sys.stdout, sys.stderr = (io.TextIOWrapper(file, write_through=True) for file in files)
        print(f"\n>>>> rank {self.rank} of {self.world_size} >>>>")

    def resume(self) -> None:
        if self._state == "started":
            return
        if self.streams:
            sys.stdout, sys.stderr = self.streams
        super().resume()
        self.terminal.release()


class _Prefixed(io.TextIOWrapper):
    """Writes whole lines, each with its rank in front."""

    def __init__(self, fd: int, rank: int) -> None:
        super().__init__(io.FileIO(fd, "w", closefd=False), write_through=True)
        self.prefix, self.begun = f"[rank{rank}] ", ""

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        if lines:
            super().write("".join(f"{self.prefix}{line}\n" for line in lines))
        return len(text)

    def finish(self) -> None:
        """Writes the last line, if it has no end."""
        if self.begun:
            self.write("\n")
