"""``neuron-dist run`` and ``train`` as a process of their own, forked from one that has imported torch."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from neuron_dist.testing import run_ranks

FROM_RUN_RANKS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Launched:
    """A launcher that has ended."""

    code: int
    """As in :mod:`subprocess`."""
    out: str
    err: str
    left: list[int]
    """Processes of its ranks that outlived it."""
    left_files: list[str]
    """What is still in its folder for temporary files."""


def launched(folder, *args, stdin="", interrupt=None, timeout=280):
    """Runs ``neuron-dist ARGS`` in ``folder``. With ``interrupt``, a signal, sends it once a rank has written to a
    file ``ready``; ranks write their pids into files named ``pid*``."""
    (result,) = run_ranks(1, _launch, str(folder), args, stdin, interrupt, backend=None, timeout=timeout)
    return result


def launched_together(folders, *args):
    """Runs ``neuron-dist ARGS`` in each of ``folders``, at the same time."""
    return run_ranks(len(folders), _launch_one, [str(folder) for folder in folders], args, backend=None, timeout=280)


def _launch_one(folders, args):
    return _launch(folders[int(os.environ["RANK"])], args, "", None)


def _launch(folder, args, stdin, interrupt):
    os.chdir(folder)
    place = Path(folder)
    for name in FROM_RUN_RANKS:
        del os.environ[name]
    (place / "stdin").write_text(stdin)
    temporary = place / "temporary"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None  # what it was in this process, where anything has asked
    pid = os.fork()
    if pid == 0:
        os.setsid()
        write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        for descriptor, name, flags in ((0, "stdin", os.O_RDONLY), (1, "out", write), (2, "err", write)):
            os.dup2(os.open(place / name, flags, 0o600), descriptor)
        _main(list(args))
    if interrupt is not None:
        while not (place / "ready").exists():
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), (place / "err").read_text()
            time.sleep(0.05)
        os.kill(pid, interrupt)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ranks = [int(file.read_text()) for file in place.glob("pid*")]
    deadline = time.monotonic() + 5
    while (left := [rank for rank in ranks if _lives(rank)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return Launched(code, (place / "out").read_text(), (place / "err").read_text(), left, os.listdir(temporary))


def _main(args):
    """The console script, in a process that has run nothing else."""
    status = 1
    try:
        from launch.cli import main

        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.default_int_handler if name == signal.SIGINT else signal.SIG_DFL)
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
        main(args)
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
