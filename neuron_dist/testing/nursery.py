"""The process that a test's ranks are forked from, and what such a rank does. See :mod:`neuron_dist.forking`.

Beside the messages of every nursery there are

    to the nursery    ("launch", world_size, number of descriptors) + the first of them
                      ("descriptors",) + the next ones, as long as some are lacking
    from the nursery  ("started", [pid of each rank])

The descriptors of a launch: the request; (result, standard output, standard error) of each rank; what every rank
inherits. Those of a rank are memfds: nothing to clean up, and no pipe that could fill.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import multiprocessing.util
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial

from neuron_dist.forking import MAX_DESCRIPTORS, MAX_MESSAGE, Nursery, preload

__all__ = ["STACK_SIGNAL", "Request", "connect", "import_modules", "inherited", "main", "outputs"]

STACK_SIGNAL = signal.SIGUSR2
"""On this signal a rank writes the Python stacks of its threads to its log."""

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
    preload("torch._dynamo")  # every optimizer imports it: a second of each rank
    with socket.socket(fileno=descriptor) as channel:
        _TestNursery(channel).serve()


class _TestNursery(Nursery):
    def obey(self, message: tuple, descriptors: list[int]) -> None:
        _, world_size, count = message
        while len(descriptors) < count:
            data, more, _, _ = socket.recv_fds(self.channel, MAX_MESSAGE, MAX_DESCRIPTORS)
            if not data:
                return  # the test process has gone, which ends this one
            descriptors += more
        self._launch(world_size, descriptors)

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
            files = descriptors[1 + 3 * rank : 4 + 3 * rank]
            pids.append(self.fork(rank, partial(_live_as_rank, request, rank, *files)))
        for descriptor in descriptors:
            os.close(descriptor)
        self.send("started", pids)


def _live_as_rank(request: Request, rank: int, result: int, out: int, err: int) -> int:
    """The whole life of a rank, and its exit status."""
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
    # as its own processes do at their end: sockets and folders that it made go
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    return status


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
