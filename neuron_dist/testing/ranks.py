"""``run_ranks``: the test process's side of the nursery."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from collectives import spelling
from neuron_dist.forking import MAX_DESCRIPTORS
from neuron_dist.testing.errors import RankDied, RankError, RanksTimeout
from neuron_dist.testing.nursery import STACK_SIGNAL, Request, import_modules, main

__all__ = ["Launch", "Output", "close_nursery", "launched", "run_ranks", "start_nursery"]

FAILURE_GRACE_S = 10.0
"""How long the other ranks may still run after one has failed."""
DEATH_GRACE_S = 1.0
"""How long ranks that are expected to die are waited for when all others have finished."""
STACK_GRACE_S = 1.0
"""How long hung ranks are given to write their stacks."""
LOG_TAIL = 4000
"""Characters of a rank's output that an error shows."""


def run_ranks(
    world_size: int,
    fn: Callable[..., Any],
    *args: Any,
    backend: str | None = "neuron",
    device: str | None = None,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    expect_dead: Collection[int] = (),
    return_exceptions: bool = False,
    preload: Collection[str] = (),
) -> list[Any]:
    """Calls ``fn(*args)`` in ``world_size`` ranks and returns what each of them returned, by rank.

    The ranks are forked from a process that has imported torch and the module of ``fn``, a module-level function
    whose module starts no thread and touches no device when imported. They find torchrun's environment and an
    initialised process group of ``backend``, unless that is None; ``device`` becomes torch's default device.
    As with torchrun, the rendezvous store outlives any rank. Modules named in ``preload`` are imported before the
    forks, too: those that ``fn`` imports itself, where that takes long.

    A rank that raises makes this raise :class:`RankError` (the first one in time), one that dies
    :class:`RankDied`, and ranks that do not finish within ``timeout`` seconds :class:`RanksTimeout` with their
    stacks. With ``return_exceptions`` such an error is the rank's result instead.

    Ranks in ``expect_dead`` are to be killed, or stopped, by the test: their result is the :class:`RankDied`,
    and once only they are left they are killed here.

    All processes of the ranks have ended when this returns or raises.
    """
    if fn.__module__ == "__main__":
        raise ValueError(
            f"{fn.__qualname__} lives in __main__, which ranks cannot import: move it to a module"
        )
    with launched(
        world_size,
        fn,
        args,
        prepare=(import_modules, (*preload, fn.__module__)),
        backend=backend,
        device=device,
        env=env,
    ) as launch:
        results = launch.watch(timeout, frozenset(expect_dead))
    if not return_exceptions and launch.failures:
        raise launch.first_failure()
    return results


@contextmanager
def launched(
    world_size: int,
    fn: Callable[..., Any],
    args: tuple,
    *,
    prepare: tuple[Callable[..., Any], tuple],
    name: str = "",
    backend: str | None = None,
    device: str | None = None,
    env: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
    separate_stderr: bool = False,
) -> Iterator[Launch]:
    """The ranks of one call, for those that want to watch them themselves; what still runs at the end is killed.

    ``prepare`` is a function and its arguments, called before the forks in the process that ranks are forked from.
    ``inherit`` are descriptors that ranks find in :data:`neuron_dist.testing.nursery.inherited`. ``name`` is what
    messages call it, the function's name unless given.
    """
    from neuron_dist import loopback

    store = loopback.store(wait_for_workers=False)
    request = Request(
        name=name or f"{fn.__module__}.{fn.__qualname__}",
        prepare=pickle.dumps(prepare),
        call=pickle.dumps((fn, args)),
        sys_path=list(sys.path),
        cwd=os.getcwd(),
        env=_environment(world_size, store.port) | dict(env or {}),
        backend=backend,
        device=device,
    )
    with _lock:
        launch = Launch(start_nursery(), world_size, request, inherit, separate_stderr)
        try:
            yield launch
        finally:
            launch.close()


def _environment(world_size: int, port: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


class _Channel:
    """The nursery's process and the socket to it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from {main.__module__} import main; main({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches the test process only, which then kills its ranks
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def send(self, message: tuple, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.socket, [pickle.dumps(message)], descriptors[:MAX_DESCRIPTORS])
        for start in range(MAX_DESCRIPTORS, len(descriptors), MAX_DESCRIPTORS):
            more = descriptors[start : start + MAX_DESCRIPTORS]
            socket.send_fds(self.socket, [pickle.dumps(("descriptors",))], more)

    def receive(self, deadline: float | None = None) -> tuple | None:
        """The next message, or None at the deadline."""
        if not wait(
            [self.socket], None if deadline is None else max(0.0, deadline - time.monotonic())
        ):
            return None
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError(
                f"the process that ranks are forked from has ended with {self.process.wait()}"
            )
        return pickle.loads(data)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


_lock = threading.Lock()
_channel: _Channel | None = None


def start_nursery() -> _Channel:
    """The nursery of this process, started at first use; it imports while this process goes on."""
    global _channel
    if _channel is not None and _channel.process.poll() is not None:
        _channel = None
    if _channel is None:
        _channel = _Channel()
        atexit.register(_channel.close)
    return _channel


def close_nursery() -> None:
    """Ends the nursery of this process, if there is one; the next launch starts another."""
    global _channel
    if _channel is not None:
        atexit.unregister(_channel.close)
        _channel.close()
        _channel = None


@dataclass(frozen=True)
class Output:
    """What a rank has written; ``stderr`` is empty where both went to one place."""

    stdout: str
    stderr: str


class Launch:
    """One set of ranks, from their fork to the end of the last one."""

    def __init__(
        self,
        channel: _Channel,
        world_size: int,
        request: Request,
        inherit: Sequence[int] = (),
        separate_stderr: bool = False,
    ) -> None:
        self.channel = channel
        self.name = request.name
        self.results: list[Any] = [None] * world_size
        self.failures: dict[int, tuple[int, Exception]] = {}
        """Time and error of each rank that failed."""
        self.stacks_at: dict[int, int] = {}
        """Where, in what a hung rank has written to stderr, its stacks begin."""
        self.result = [os.memfd_create(f"rank-{i}-result") for i in range(world_size)]
        self.out = [os.memfd_create(f"rank-{i}-output") for i in range(world_size)]
        self.err = self.out
        if separate_stderr:
            self.err = [os.memfd_create(f"rank-{i}-stderr") for i in range(world_size)]
        call = os.memfd_create("request")
        try:
            with open(call, "wb") as file:
                pickle.dump(request, file)
                file.flush()
                of_ranks = [fd for rank in zip(self.result, self.out, self.err, strict=True) for fd in rank]
                descriptors = [call, *of_ranks, *inherit]
                channel.send(("launch", world_size, len(descriptors)), descriptors)
            started = channel.receive()
        except BaseException:
            self._close_files()
            raise
        assert started is not None and started[0] == "started"
        self.pids: list[int] = started[1]
        self.running = set(range(world_size))

    def watch(
        self,
        timeout: float,
        expect_dead: frozenset[int] = frozenset(),
        paused: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        """Waits for the ranks; results and failures are complete afterwards. While ``paused()``, no time passes."""
        start = time.monotonic()
        deadline = start + timeout
        while self.running:
            if self.running <= expect_dead:
                deadline = min(deadline, time.monotonic() + DEATH_GRACE_S)
            elif self.failures:
                deadline = min(deadline, time.monotonic() + FAILURE_GRACE_S)
            message = self.channel.receive(deadline)
            if message is None:
                if not paused():
                    break
                deadline = time.monotonic() + timeout
                continue
            self._on_end(message, expect_dead)
        hung = sorted(self.running - expect_dead)
        if hung:
            error = RanksTimeout(self._describe_hang(hung, time.monotonic() - start), hung)
            self.failures |= {rank: (time.monotonic_ns(), error) for rank in hung}
        self.kill(expect_dead)
        for rank, (_, failure) in self.failures.items():
            self.results[rank] = failure
        return self.results

    def kill(self, expect_dead: frozenset[int] = frozenset()) -> None:
        """Ends what still runs, and only that."""
        if self.channel.process.poll() is not None:
            self.running.clear()  # its ranks have died with the nursery
        for rank in self.running:
            self.signal(rank, signal.SIGKILL)
        hung = frozenset(self.failures) | expect_dead
        while self.running:
            message = self.channel.receive()
            assert message is not None
            self._on_end(message, hung)

    def close(self) -> None:
        """Ends what still runs, and forgets what the ranks have written."""
        self.kill()
        self._close_files()

    def signal(self, rank: int, number: int) -> None:
        """Sends a signal to a rank, if it still runs; SIGKILL also to the processes that it has started."""
        self.channel.send(("signal", rank, number))

    def output(self, rank: int) -> Output:
        """What ``rank`` has written, but for the stacks of a hung one; to be asked before the launch is closed."""
        out, err = (_content(files[rank]) for files in (self.out, self.err))
        if self.err is self.out:
            out, err = err[: self.stacks_at.get(rank)], b""
        else:
            err = err[: self.stacks_at.get(rank)]
        return Output(out.decode(errors="replace"), err.decode(errors="replace"))

    def first_failure(self) -> Exception:
        """The error that came first: the others are often its consequences."""
        return min(self.failures.values(), key=lambda failure: failure[0])[1]

    def _on_end(self, message: tuple, expected: frozenset[int]) -> None:
        """Takes in the end of a rank: its result, its error, or that it died."""
        _, rank, exit_code, time_ns = message
        self.running.discard(rank)
        record = _content(self.result[rank])
        if not record:
            died = RankDied(rank, self.pids[rank], exit_code, self._log_tail(rank))
            self.results[rank] = died
            if rank not in expected:
                self.failures[rank] = (time_ns, died)
            return
        content = pickle.loads(record)
        if "value" in content:
            self.results[rank] = content["value"]
            return
        where = f"rank {rank} of {len(self.results)} failed in {self.name}"
        text = f"{where}\n\n{content['traceback'].rstrip()}"
        error = RankError(text, rank, self._log_tail(rank))
        error.__cause__ = content["error"]
        self.failures[rank] = (content["time_ns"], error)

    def _describe_hang(self, hung: list[int], after_s: float) -> str:
        self.stacks_at = {rank: len(_content(self.err[rank])) for rank in hung}
        for rank in hung:
            self.signal(rank, STACK_SIGNAL)
        time.sleep(STACK_GRACE_S)
        lines = [
            f"{spelling.ranks(hung)} of {len(self.results)} did not finish {self.name} within {after_s:.0f} s"
        ]
        for rank, (_, failure) in sorted(self.failures.items()):
            lines.append(f"rank {rank} had failed before: {str(failure).strip().splitlines()[-1]}")
        for rank in hung:
            stack = _own_frames(_content(self.err[rank])[self.stacks_at[rank] :])
            state = _state(self.pids[rank])
            lines.append(f"\n--- rank {rank} (pid {self.pids[rank]}, {state}) ---")
            lines.append(stack or "no Python stack: the process does not react to signals")
        return "\n".join(lines)

    def _log_tail(self, rank: int) -> str:
        output = self.output(rank)
        text = (output.stdout + output.stderr).strip()
        return f"\n\n--- output of rank {rank} ---\n{text[-LOG_TAIL:]}" if text else ""

    def _close_files(self) -> None:
        for descriptor in {*self.result, *self.out, *self.err}:
            os.close(descriptor)
        self.result, self.out, self.err = [], [], []


def _content(descriptor: int) -> bytes:
    """The whole file; with pread, since its offset is shared with the rank that writes it."""
    size = os.fstat(descriptor).st_size
    return b"".join(os.pread(descriptor, 1 << 30, at) for at in range(0, size, 1 << 30))


_SCAFFOLD = re.compile(
    r'  File "(<string>|.*/(_pytest|pluggy|launch/pytest_plugin|neuron_dist/testing)/[^"]*|.*/neuron_dist/forking\.py)", line \d+ in .*'
)


def _own_frames(stacks: bytes) -> str:
    """Stacks without the frames that lead from the process's start to the test."""
    lines = stacks.decode(errors="replace").rstrip().splitlines()
    return "\n".join(line for line in lines if not _SCAFFOLD.fullmatch(line))


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            code = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "R": "running", "D": "in uninterruptible sleep"}.get(code, "sleeping")
