"""A user's program in a forked rank, as ``python script.py`` or ``python -m module`` would run it."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from neuron_dist import reports

__all__ = ["Program", "live"]

_TRACEBACK_LIMIT = 32_000
"""Characters of a traceback that a report carries: its end."""
_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True)
class Program:
    """What one rank runs, and in which surroundings."""

    target: str
    """A script's path, or a module's name."""
    is_module: bool
    args: tuple[str, ...]
    env: dict[str, str]
    """The whole environment."""
    stdout: str
    """A file for the standard output; the launcher's own unless given."""
    stderr: str


def live(program: Program) -> int:
    """The whole life of a rank, but for its end by ``os._exit`` with the status that this returns."""
    os.environ.clear()
    os.environ.update(program.env)
    _open_streams(program)
    _forget_the_launcher()
    status = _status_of(lambda: _run(program), bool(program.stderr))
    # As the interpreter does at its end, which a fork must not reach by way of its parent's frames.
    status = _status_of(_finish, bool(program.stderr)) or status
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if status == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _open_streams(program: Program) -> None:
    for descriptor, path in ((1, program.stdout), (2, program.stderr)):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(file, descriptor)
            os.close(file)
    # By lines, so that those of several ranks do not mix within a line as they would with python -u.
    by_lines = partial(open, mode="w", buffering=1, closefd=False)
    sys.stdout = by_lines(1, encoding=sys.stdout.encoding)
    sys.stderr = by_lines(2, encoding=sys.stderr.encoding, errors="backslashreplace")


def _forget_the_launcher() -> None:
    """Sets anew what a process takes from its environment, or at random, when it imports."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _run(program: Program) -> None:
    sys.argv = [program.target, *program.args]
    if not sys.flags.safe_path:
        folder = os.path.dirname(os.path.realpath(program.target))
        sys.path[0] = os.getcwd() if program.is_module else folder
    if program.is_module:
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program.target, run_name="__main__")


def _finish() -> None:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _status_of(work: Callable[[], None], has_log: bool) -> int:
    """Does ``work``; the exit status that Python would end with after it. Errors are reported to the launcher, and
    told in the rank's log if it has one."""
    try:
        work()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BaseException as error:
        _report(error, has_log)
        return 1
    return 0


def _report(error: BaseException, has_log: bool) -> None:
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    time_ns = time.monotonic_ns()
    error.__traceback__ = _of_the_program(error.__traceback__)
    text = "".join(traceback.format_exception(error))
    told = reports.send(
        "failed",
        int(os.environ["RANK"]),
        time_ns=time_ns,
        traceback=text[-_TRACEBACK_LIMIT:],
        error=traceback.format_exception_only(error)[-1].strip(),
        of_a_peer=isinstance(error, DistError),
    )
    hook = sys.excepthook
    if hook is not sys.__excepthook__ and not hook.__module__.startswith("torch."):  # the program's own
        hook(type(error), error, error.__traceback__)
    elif has_log or not told:
        sys.stderr.write(text)
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file and not os.path.exists(error_file):  # a program's own @record comes first
        get_error_handler().record_exception(error)


def _of_the_program(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is neither of this file nor of runpy."""
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    return frames
