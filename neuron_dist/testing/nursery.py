"""The process that ranks are forked from: it has imported torch and does nothing else.

A rank that is forked starts in milliseconds, one that imports torch in seconds. The parent of the forks must not
be the test process, which may have used the device or started threads; so this one is kept clean: no threads, no
device, one socket to the test process. It ends when that socket closes, and its ranks with it.

Messages are pickled tuples on a SOCK_SEQPACKET socket:

    to the nursery    ("launch", world_size, number of descriptors) + the first of them
                      ("descriptors",) + the next ones, as long as some are lacking
                      ("signal", rank, signal number)
    from the nursery  ("started", [pid of each rank])
                      ("ended", rank, exit code, time in ns)

The descriptors of a launch: the request; (result, standard output, standard error) of each rank; what every rank
inherits. Those of a rank are memfds: nothing to clean up, and no pipe that could fill.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait

__all__ = ["MAX_DESCRIPTORS", "STACK_SIGNAL", "Request", "connect", "import_modules", "inherited", "main", "outputs"]

STACK_SIGNAL = signal.SIGUSR2
"""On this signal a rank writes the Python stacks of its threads to its log."""

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "torch._dynamo",  # every optimizer imports it: a second of each rank
    "neuron_dist",
    "collectives.planner",
)
_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE = 1 << 16
MAX_DESCRIPTORS = 253
"""Of one message: the kernel's SCM_MAX_FD."""

inherited: list[int] = []
"""In a rank: the descriptors that its launch was given for all ranks, in that order."""
outputs: list[int] = []
"""In a rank: the descriptors of its standard output and standard error, as its launch reads them."""


@dataclass
class Request:
    """What the ranks of one launch shall do."""

    name: str
    """Of the function, for messages."""
    prepare: bytes
    """The pickled ``(function, args)`` that is called in the nursery before the forks: what it imports is shared."""
    call: bytes
    """The pickled ``(function, args)``; unpickled in each rank."""
    sys_path: list[str]
    cwd: str
    env: dict[str, str]
    """The whole environment of a rank, but for RANK and LOCAL_RANK."""
    backend: str | None
    device: str | None


def import_modules(*names: str) -> None:
    """Imports ``names``: what :class:`Request` prepares for a function of a module."""
    for name in names:
        importlib.import_module(name)


def main(descriptor: int) -> None:
    """Serves launches on the socket ``descriptor`` until it closes."""
    for name in PRELOAD:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # collections in the ranks shall not copy what they share with this process
    with socket.socket(fileno=descriptor) as channel:
        _Nursery(channel).serve()


class _Nursery:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pids: dict[int, int] = {}
        """pid of each rank that has not ended."""
        self.pidfds: dict[int, int] = {}
        """rank of each pidfd."""
        self.zombies: list[int] = []

    def serve(self) -> None:
        try:
            while True:
                ready = wait([self.channel, *self.pidfds])
                for pidfd in [item for item in ready if isinstance(item, int)]:
                    self._on_end(pidfd)
                if self.channel in ready and not self._obey():
                    return
        finally:
            for pid in self.pids.values():
                _kill_session(pid)

    def _obey(self) -> bool:
        """Does what one message asks; false when the socket has closed."""
        data, descriptors, _, _ = socket.recv_fds(self.channel, _MAX_MESSAGE, MAX_DESCRIPTORS)
        if not data:
            return False
        match pickle.loads(data):
            case ("launch", world_size, count):
                while len(descriptors) < count:
                    data, more, _, _ = socket.recv_fds(self.channel, _MAX_MESSAGE, MAX_DESCRIPTORS)
                    if not data:
                        return False
                    descriptors += more
                self._launch(world_size, descriptors)
            case ("signal", rank, number):
                if rank in self.pids:
                    if number == signal.SIGKILL:
                        _kill_session(self.pids[rank])
                    else:
                        os.kill(self.pids[rank], number)
        return True

    def _launch(self, world_size: int, descriptors: list[int]) -> None:
        request: Request = pickle.loads(_read_all(descriptors[0]))
        sys.path[:] = request.sys_path
        os.chdir(request.cwd)
        known = len(sys.modules)
        with contextlib.suppress(BaseException):  # each rank meets it in its call, and reports it
            function, args = pickle.loads(request.prepare)
            function(*args)
        if len(sys.modules) != known:
            gc.freeze()
        inherited[:] = descriptors[1 + 3 * world_size :]
        pids = []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                self.channel.close()
                _live_as_rank(request, rank, *descriptors[1 + 3 * rank : 4 + 3 * rank])
            pids.append(pid)
            self.pids[rank] = pid
            self.pidfds[os.pidfd_open(pid)] = rank
        for descriptor in descriptors:
            os.close(descriptor)
        self.channel.send(pickle.dumps(("started", pids)))

    def _on_end(self, pidfd: int) -> None:
        """Reports the end of a rank. It stays a zombie while others run, so that they can read how it ended."""
        rank = self.pidfds.pop(pidfd)
        pid = self.pids.pop(rank)
        self.zombies.append(pid)
        _kill_session(pid)  # what the rank itself has left running
        end = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert end is not None
        os.close(pidfd)
        if not self.pids:
            while self.zombies:
                os.waitpid(self.zombies.pop(), 0)
        exit_code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        self.channel.send(pickle.dumps(("ended", rank, exit_code, time.monotonic_ns())))


def _kill_session(pid: int) -> None:
    """Kills a rank and its own children. The rank leads a process group as soon as it runs."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _live_as_rank(request: Request, rank: int, result: int, out: int, err: int) -> None:
    """The whole life of a rank; does not return."""
    parent = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    outputs[:] = out, err
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
    faulthandler.enable(file=err)
    faulthandler.register(STACK_SIGNAL, file=err, all_threads=True)
    os.environ.clear()
    os.environ.update(request.env, RANK=str(rank), LOCAL_RANK=str(rank))
    status = 0
    try:
        record = pickle.dumps({"value": _call(request)})
    except BaseException as error:
        status = 1
        record = pickle.dumps(
            {
                "time_ns": time.monotonic_ns(),
                "traceback": traceback.format_exc(),
                "error": _picklable(error),
            }
        )
    _write_all(result, record)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _call(request: Request) -> object:
    """Brings the process group up, calls the function, takes the process group down."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    function, args = pickle.loads(request.call)
    if request.backend is not None:
        connect(request.backend)
    if request.device is not None:
        torch.set_default_device(request.device)
    value = function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


def connect(backend: str) -> None:
    """Initialises this rank's process group, and waits until all ranks have: one that fails at once must not break
    the peers that are still connecting to it."""
    import torch.distributed as dist

    dist.init_process_group(backend)
    store, world_size = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    if store.add("run_ranks/ready", 1) == world_size:
        store.set("run_ranks/go", "")
    store.wait(["run_ranks/go"])


def _picklable(error: BaseException) -> BaseException | None:
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return None


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
