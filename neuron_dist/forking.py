"""A process that ranks are forked from: it has imported what they need, and does nothing else.

A rank that is forked starts in milliseconds, one that imports torch in seconds. The parent of the forks must not
be a process that has used the device or started threads; so this one is kept clean: no threads, no device, one
socket to the process that it serves. It ends when that socket closes, and its ranks with it.

Messages are pickled tuples on a SOCK_SEQPACKET socket:

    to the nursery    ("signal", number of the rank, signal), and what a subclass takes in ``obey``
    from the nursery  ("ended", number of the rank, exit code, time in ns), and what a subclass sends
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import NoReturn

__all__ = ["MAX_DESCRIPTORS", "MAX_MESSAGE", "PRELOAD", "Nursery", "preload", "signal_name", "signal_session"]

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "neuron_dist",
    "neuron_dist.device.variables",
    "neuron_dist.fidelity.hook",
    "neuron_dist.simulation.roofline",
    "collectives.planner",
)
"""What a rank imports by the end of its first collective."""
MAX_MESSAGE = 1 << 16
MAX_DESCRIPTORS = 253  # the kernel's SCM_MAX_FD
_PR_SET_PDEATHSIG = 1


def preload(*more: str) -> None:
    """Imports and reads what every rank needs and the modules ``more``, and keeps collections in them from copying what
    they share with this process."""
    for name in (*PRELOAD, *more):
        importlib.import_module(name)
    from collectives.topology import ClusterError, cluster_from_environment
    from neuron_dist.fidelity.loading import all_rules

    all_rules()
    with contextlib.suppress(ClusterError):  # each rank meets it, and says so
        cluster_from_environment()
    gc.collect()
    gc.freeze()


class Nursery:
    """Forks ranks, passes signals on and reports ends, for the process at the other end of ``channel``."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pids: dict[int, int] = {}
        """pid of each rank that has not ended."""
        self.pidfds: dict[int, int] = {}
        """rank of each pidfd."""
        self.zombies: list[int] = []

    def serve(self) -> None:
        """Serves until the channel closes; ends the ranks then."""
        try:
            while True:
                ready = wait([self.channel, *self.pidfds])
                for pidfd in [item for item in ready if isinstance(item, int)]:
                    self._on_end(pidfd)
                if self.channel in ready and not self._receive():
                    return
        finally:
            for pid in self.pids.values():
                signal_session(pid, signal.SIGKILL)

    def obey(self, message: tuple, descriptors: list[int]) -> None:
        """Does what a message asks that is no signal."""
        raise NotImplementedError

    def fork(self, number: int, live: Callable[[], int]) -> int:
        """Forks a rank, the leader of a session of its own, which lives ``live`` and ends with its status; its pid."""
        pid = os.fork()
        if pid == 0:
            self.channel.close()
            for pidfd in self.pidfds:
                os.close(pidfd)
            _become(live)
        self.pids[number] = pid
        self.pidfds[os.pidfd_open(pid)] = number
        return pid

    def send(self, *message: object) -> None:
        """Tells the process that is served; one that has gone is seen by :meth:`serve`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(pickle.dumps(message))

    def _receive(self) -> bool:
        """Does what one message asks; false when the channel has closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel, MAX_MESSAGE, MAX_DESCRIPTORS)
        except ConnectionResetError:
            return False
        if not data:
            return False
        message = pickle.loads(data)
        if message[0] != "signal":
            self.obey(message, descriptors)
        elif (pid := self.pids.get(message[1])) is not None:
            if message[2] == signal.SIGKILL:
                signal_session(pid, signal.SIGKILL)
            else:
                os.kill(pid, message[2])
        return True

    def _on_end(self, pidfd: int) -> None:
        """Reports the end of a rank. It stays a zombie while others run, so that they can read how it ended."""
        number = self.pidfds.pop(pidfd)
        pid = self.pids.pop(number)
        self.zombies.append(pid)
        signal_session(pid, signal.SIGKILL)  # what the rank itself has left running
        end = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert end is not None
        os.close(pidfd)
        if not self.pids:
            while self.zombies:
                os.waitpid(self.zombies.pop(), 0)
        exit_code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        self.send("ended", number, exit_code, time.monotonic_ns())


def signal_session(pid: int, number: int) -> None:
    """Sends a signal to a rank and its own children. The rank leads a process group as soon as it runs, but one that
    has just been forked does not yet."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, number)
        except ProcessLookupError:
            continue
        return


def signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 99``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _become(live: Callable[[], int]) -> NoReturn:
    """The whole life of a rank, which ends with the nursery."""
    status = 1
    try:
        parent = os.getppid()
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            status = live()
    except BaseException:  # nothing may get back into the nursery's own frames
        traceback.print_exc()
    finally:
        os._exit(status)
