"""``run_ranks``: the test process's side of the nursery."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import wait
from typing import Any

from neuron_dist.testing.errors import RankDied, RankError, RanksTimeout
from neuron_dist.testing.nursery import STACK_SIGNAL, Request, main

__all__ = ["run_ranks"]

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
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    request = Request(
        module=fn.__module__,
        preload=tuple(preload),
        call=pickle.dumps((fn, args)),
        sys_path=list(sys.path),
        cwd=os.getcwd(),
        env=_environment(world_size, store.port) | dict(env or {}),
        backend=backend,
        device=device,
    )
    with _lock:
        launch = _Launch(_nursery(), world_size, request)
        try:
            results = launch.watch(timeout, frozenset(expect_dead))
        finally:
            launch.kill()
    if not return_exceptions and launch.failures:
        raise launch.first_failure()
    return results


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

    def send(self, message: tuple, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.socket, [pickle.dumps(message)], descriptors or [])

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


def _nursery() -> _Channel:
    """The nursery of this process, started at first use."""
    global _channel
    if _channel is not None and _channel.process.poll() is not None:
        _channel = None
    if _channel is None:
        _channel = _Channel()
        atexit.register(_channel.close)
    return _channel


class _Launch:
    """One set of ranks, from their fork to the end of the last one."""

    def __init__(self, channel: _Channel, world_size: int, request: Request) -> None:
        self.channel = channel
        self.name = f"{request.module}.{pickle.loads(request.call)[0].__qualname__}"
        self.results: list[Any] = [None] * world_size
        self.failures: dict[int, tuple[int, Exception]] = {}
        """Time and error of each rank that failed."""
        self.files = [os.memfd_create(f"rank-{i}") for i in range(2 * world_size)]
        call = os.memfd_create("request")
        try:
            with open(call, "wb") as file:
                pickle.dump(request, file)
                file.flush()
                channel.send(("launch", world_size), [call, *self.files])
            started = channel.receive()
        except BaseException:
            self._close_files()
            raise
        assert started is not None and started[0] == "started"
        self.pids: list[int] = started[1]
        self.running = set(range(world_size))

    def watch(self, timeout: float, expect_dead: frozenset[int]) -> list[Any]:
        """Waits for the ranks; results and failures are complete afterwards."""
        start = time.monotonic()
        deadline = start + timeout
        while self.running:
            if self.running <= expect_dead:
                deadline = min(deadline, time.monotonic() + DEATH_GRACE_S)
            elif self.failures:
                deadline = min(deadline, time.monotonic() + FAILURE_GRACE_S)
            message = self.channel.receive(deadline)
            if message is None:
                break
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
            self.channel.send(("signal", rank, signal.SIGKILL))
        hung = frozenset(self.failures) | expect_dead
        while self.running:
            message = self.channel.receive()
            assert message is not None
            self._on_end(message, hung)
        self._close_files()

    def first_failure(self) -> Exception:
        """The error that came first: the others are often its consequences."""
        return min(self.failures.values(), key=lambda failure: failure[0])[1]

    def _on_end(self, message: tuple, expected: frozenset[int]) -> None:
        """Takes in the end of a rank: its result, its error, or that it died."""
        _, rank, exit_code, time_ns = message
        self.running.discard(rank)
        record = self._read(2 * rank)
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
        error = RankError(f"{where}\n\n{content['traceback'].rstrip()}{self._log_tail(rank)}", rank)
        error.__cause__ = content["error"]
        self.failures[rank] = (content["time_ns"], error)

    def _describe_hang(self, hung: list[int], after_s: float) -> str:
        before = {rank: len(self._read(2 * rank + 1)) for rank in hung}
        for rank in hung:
            self.channel.send(("signal", rank, STACK_SIGNAL))
        time.sleep(STACK_GRACE_S)
        lines = [
            f"{_ranks(hung)} of {len(self.results)} did not finish {self.name} within {after_s:.0f} s"
        ]
        for rank, (_, failure) in sorted(self.failures.items()):
            lines.append(f"rank {rank} had failed before: {str(failure).strip().splitlines()[-1]}")
        for rank in hung:
            stack = self._read(2 * rank + 1)[before[rank] :].decode(errors="replace").rstrip()
            state = _state(self.pids[rank])
            lines.append(f"\n--- rank {rank} (pid {self.pids[rank]}, {state}) ---")
            lines.append(stack or "no Python stack: the process does not react to signals")
        return "\n".join(lines)

    def _read(self, index: int) -> bytes:
        """The whole file; with pread, since its offset is shared with the rank that writes it."""
        size = os.fstat(self.files[index]).st_size
        return b"".join(os.pread(self.files[index], 1 << 30, at) for at in range(0, size, 1 << 30))

    def _log_tail(self, rank: int) -> str:
        text = self._read(2 * rank + 1).decode(errors="replace").strip()
        return f"\n\n--- output of rank {rank} ---\n{text[-LOG_TAIL:]}" if text else ""

    def _close_files(self) -> None:
        for descriptor in self.files:
            os.close(descriptor)
        self.files = []


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            code = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
    return {"T": "stopped", "R": "running", "D": "in uninterruptible sleep"}.get(code, "sleeping")
