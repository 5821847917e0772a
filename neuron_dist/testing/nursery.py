"""The process that a test's ranks are forked from, and what such a rank does. See :mod:`neuron_dist.forking`.

Beside the messages of every nursery there are

    to the nursery    ("launch", world_size) + descriptors: the request, then (result, log) of each rank
    from the nursery  ("started", [pid of each rank])

Descriptors are memfds: nothing to clean up, and no pipe that could fill.
"""

from __future__ import annotations

import contextlib
import faulthandler
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
from functools import partial
from typing import Any

from neuron_dist.forking import Nursery, preload

__all__ = ["STACK_SIGNAL", "Request", "main"]

STACK_SIGNAL = signal.SIGUSR2
"""On this signal a rank writes the Python stacks of its threads to its log."""


@dataclass
class Request:
    """What the ranks of one launch shall do."""

    module: str
    """Where the function lives; imported once, before the forks."""
    call: bytes
    """The pickled ``(function, args)``; unpickled in each rank."""
    sys_path: list[str]
    cwd: str
    env: dict[str, str]
    """The whole environment of a rank, but for RANK and LOCAL_RANK."""
    backend: str | None
    device: str | None


def main(descriptor: int) -> None:
    """Serves launches on the socket ``descriptor`` until it closes."""
    preload()
    with socket.socket(fileno=descriptor) as channel:
        _TestNursery(channel).serve()


class _TestNursery(Nursery):
    def obey(self, message: tuple, descriptors: list[int]) -> None:
        _, world_size = message
        self._launch(world_size, descriptors)

    def _launch(self, world_size: int, descriptors: list[int]) -> None:
        request: Request = pickle.loads(_read_all(descriptors[0]))
        sys.path[:] = request.sys_path
        os.chdir(request.cwd)
        with contextlib.suppress(
            Exception
        ):  # each rank meets it when it unpickles the call, and reports it
            importlib.import_module(request.module)
        pids = []
        for rank in range(world_size):
            result, log = descriptors[1 + 2 * rank], descriptors[2 + 2 * rank]
            pids.append(self.fork(rank, partial(_live_as_rank, request, rank, result, log)))
        for descriptor in descriptors:
            os.close(descriptor)
        self.send("started", pids)


def _live_as_rank(request: Request, rank: int, result: int, log: int) -> int:
    """The whole life of a rank, and its exit status."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
    faulthandler.enable(file=2)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
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
    return status


def _call(request: Request) -> object:
    """Brings the process group up, calls the function, takes the process group down."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    function, args = pickle.loads(request.call)
    if request.backend is not None:
        dist.init_process_group(request.backend)
        _wait_for_all(dist.distributed_c10d._get_default_store(), dist.get_world_size())
    if request.device is not None:
        torch.set_default_device(request.device)
    value = function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return value


def _wait_for_all(store: Any, world_size: int) -> None:
    """A rank that fails at once must not break the peers that are still connecting to it."""
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
