"""Ranks as forks of one process: what torch's elastic agent gets in the place of the processes that it would start."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any, NoReturn

from launch.program import Program, live
from neuron_dist import reports
from neuron_dist.forking import Nursery, signal_session

__all__ = ["Fork", "ForkHandler", "Forks"]


class _ProgramNursery(Nursery):
    """Beside the messages of its base: ("start", number) with the program's file, answered ("started", number, pid)."""

    def obey(self, message: tuple, descriptors: list[int]) -> None:
        _, number = message
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            program: Program = pickle.load(file)
        self.send("started", number, self.fork(number, partial(live, program)))


class Forks:
    """The process that ranks are forked from, seen from the launcher. It is itself a fork of the launcher, which at
    that time must have imported what ranks need, started no thread and not used the device.

    ``output`` is a descriptor for what ranks print, in the place of the launcher's own standard output and error.
    """

    def __init__(self, output: int | None = None) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports, speaker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Where the launcher reads what ranks report."""
        self.forks: dict[int, Fork] = {}
        sys.stdout.flush()  # what is still to be written is written by one process
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            self.reports.close()
            _serve(theirs, speaker, output)
        theirs.close()
        speaker.close()

    def start(self, program: Program) -> Fork:
        """Starts a rank; raises :class:`RuntimeError` if the process that forks has ended."""
        number = len(self.forks)
        file = os.memfd_create("program")
        try:
            with open(file, "wb", closefd=False) as stream:
                pickle.dump(program, stream)
            socket.send_fds(self.socket, [pickle.dumps(("start", number))], [file])
        except OSError as error:
            raise RuntimeError("the process that ranks are forked from has ended") from error
        finally:
            os.close(file)
        fork = self.forks[number] = Fork(self, number)
        while not fork.pid and fork.returncode is None:
            self.take_in(None)
        return fork

    def take_in(self, timeout_s: float | None) -> None:
        """Takes in what has been told of the ranks, waiting for the first message at most ``timeout_s``."""
        if not wait([self.socket], timeout_s):
            return
        try:
            message: Any = pickle.loads(data) if (data := self.socket.recv(1 << 16)) else ("gone",)
        except ConnectionResetError:
            message = ("gone",)
        match message:
            case ("started", number, pid):
                self.forks[number].pid = pid
            case ("ended", number, exit_code, time_ns):
                self.forks[number].end(exit_code, time_ns)
            case ("gone",):  # and its ranks with it
                for fork in self.forks.values():
                    if fork.returncode is None:
                        fork.end(-signal.SIGKILL, time.monotonic_ns())

    def close(self) -> None:
        """Ends the process, and what ranks there still are. Their reports can be read afterwards."""
        self.socket.close()
        os.waitpid(self.pid, 0)


def _serve(channel: socket.socket, speaker: socket.socket, output: int | None) -> NoReturn:
    """The life of the process that forks; it does not return."""
    status = 1
    try:
        os.setsid()  # Ctrl-C is the launcher's
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
        reports.connect(speaker, shows_progress=output is not None)
        _ProgramNursery(channel).serve()
        status = 0
    finally:
        os._exit(status)


class Fork:
    """A rank, with what torch asks of a :class:`subprocess.Popen`."""

    def __init__(self, forks: Forks, number: int) -> None:
        self._forks = forks
        self._number = number
        self.pid = 0
        self.returncode: int | None = None
        self.on_end: Callable[[int, int], None] = lambda exit_code, time_ns: None

    def end(self, exit_code: int, time_ns: int) -> None:
        """It has ended, at that time of CLOCK_MONOTONIC."""
        self.returncode = exit_code
        self.on_end(exit_code, time_ns)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._forks.take_in(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"rank's process {self.pid}", timeout or 0.0)
            self._forks.take_in(left)
        return self.returncode


class ForkHandler:
    """A rank, with what torch's agent asks of a ``SubprocessHandler``."""

    def __init__(self, proc: Fork, local_rank: int) -> None:
        self.proc = proc
        self.local_rank_id = local_rank

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Sends the signal to the rank and its own children."""
        signal_session(self.proc.pid, death_sig or signal.SIGTERM)
