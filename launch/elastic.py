"""torchrun with forked ranks: its own options, agent, rendezvous, restarts, logs and error files, and our forks in
the place of the processes that it would start."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import click

from launch.failures import Failures
from launch.forks import Fork, ForkHandler, Forks
from launch.listener import Listener
from launch.options import near
from launch.program import Program
from launch.progress import LiveLine

__all__ = ["Parser", "launch", "local_world_size"]

EXIT_FAILED = 1
"""Exit status where a rank has failed or a signal has ended the run, as torchrun's."""
_NOISE = re.compile(r"Sending process .* closing signal|failed \(exitcode|Received .* death signal")
"""What torch's agent logs for each rank that it ends, and of failures: said better here, and once."""


class Parser(argparse.ArgumentParser):
    """torchrun's options, as the installed torch has them, and ``-n``; what is wrong is an error of usage."""

    def __init__(self, ctx: click.Context, usage: str, description: str, without: Collection[str] = ()) -> None:
        """``usage`` follows the command's name; ``without`` names torchrun's options that are left out."""
        from torch.distributed.run import get_args_parser

        super().__init__(usage=f"{ctx.command_path} {usage}", description=description, add_help=False)
        self._ctx = ctx
        for action in get_args_parser()._actions:
            if action.dest not in without:
                self._add_action(action)
        self.add_argument(
            "-n",
            dest="nproc_per_node",
            default=argparse.SUPPRESS,
            metavar="RANKS",
            help="Short for --nproc-per-node.",
        )

    def error(self, message: str) -> NoReturn:
        raise click.UsageError(message, self._ctx)

    def parse(self, args: Iterable[str]) -> argparse.Namespace:
        """The options; an unknown one is told with the nearest spelling."""
        options, unknown = self.parse_known_args(list(args))
        if unknown:
            name = unknown[0].partition("=")[0]
            self.error(f"no option {name!r}{near(name, self._option_string_actions) if len(name) > 2 else ''}")
        if options.max_restarts < 0:
            self.error(f"--max-restarts: {options.max_restarts}, expected 0 or more")
        if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", options.nnodes):
            self.error(f"--nnodes: {options.nnodes!r}, expected a number, or MIN:MAX")
        return options


def local_world_size(options: argparse.Namespace) -> int:
    """Ranks on this machine."""
    from torch.distributed.run import determine_local_world_size

    try:
        ranks = determine_local_world_size(options.nproc_per_node)
    except ValueError as error:
        raise click.UsageError(f"--nproc-per-node: {error}; expected a number, auto, cpu or neuron") from None
    if ranks < 1:
        raise click.UsageError(f"--nproc-per-node: {ranks}, expected 1 or more")
    return ranks


def launch(options: argparse.Namespace, name: str, live: LiveLine | None = None) -> int:
    """Runs ranks as ``options`` say, and returns the exit status. Progress and what ranks print go to ``live``.

    To be called by a process that has imported what ranks need, started no thread and not used the device.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException, api
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

    from neuron_dist.loopback import elastic_stores

    _set_threads(local_world_size(options))
    for logger in (api.logger, logging.getLogger("torch.distributed.elastic.agent.server.api")):
        logger.addFilter(lambda entry: not _NOISE.match(entry.getMessage()))
    run = _Run(name, api.get_subprocess_handler, live)
    api.get_subprocess_handler = run.handler
    try:
        # The error file of this process, where somebody has started it who reads one, is that of the first failure.
        run_agent = record(torchrun.run) if "TORCHELASTIC_ERROR_FILE" in os.environ else torchrun.run
        with ExitStack() as stack:
            stack.enter_context(elastic_stores())
            if options.log_dir is None and options.redirects == options.tee == "0":
                # No logs are asked for: torchrun would leave a folder of empty ones.
                options.log_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchelastic_"))
            run_agent(options)
    except ChildFailedError as error:
        run.tell(str(error))
        return EXIT_FAILED
    except SignalException as end:
        run.say(f"ended by {end.sigval.name}, and all ranks with it")
        return EXIT_FAILED
    except ValueError as error:
        if run.forks.forks:
            raise
        raise click.UsageError(str(error)) from None
    except KeyboardInterrupt:
        run.say("interrupted")
        return EXIT_FAILED
    finally:
        run.close()
        api.get_subprocess_handler = run.subprocess_handler
    return 0


class _Run:
    """The ranks of all attempts, and what is known of their failures."""

    def __init__(self, name: str, subprocess_handler: Callable[..., Any], live: LiveLine | None) -> None:
        self.name = name
        self.subprocess_handler = subprocess_handler
        self.failures = Failures()
        self.closing = False
        handlers = {"failed": self.failures.reported, "step": live.step if live else _ignore}
        if live is None:
            self.forks = Forks()
            self.listener = Listener(self.forks.reports, handlers)
        else:
            printed, output = os.pipe()
            self.forks = Forks(output)
            os.close(output)
            live.start()
            self.listener = Listener(self.forks.reports, handlers, printed, live.write)
        self.python = os.getenv("PYTHON_EXEC", sys.executable)

    def handler(
        self,
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str,
        stderr: str,
        local_rank_id: int,
        numa_options: Any = None,
    ) -> Any:
        """Stands for torch's ``get_subprocess_handler``: forks a rank that runs Python, and leaves others to torch."""
        if local_rank_id == 0:
            self._begin_attempt(env)
        if entrypoint != self.python or self.python != sys.executable or numa_options is not None:
            return self.subprocess_handler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
        words = [str(arg) for arg in args]
        words.remove("-u")
        is_module = words[0] == "-m"
        target, *rest = words[is_module:]
        fork = self.forks.start(
            Program(target, is_module, tuple(rest), {**os.environ, **env}, stdout or "", stderr or "")
        )
        fork.on_end = partial(self._on_end, int(env["RANK"]), fork)
        return _Handler(fork, local_rank_id, self)

    def _begin_attempt(self, env: dict[str, str]) -> None:
        restarts = int(env["TORCHELASTIC_RESTART_COUNT"])
        if self.failures:
            self.tell("")
            self.say(f"all ranks start again, restart {restarts} of {env['TORCHELASTIC_MAX_RESTARTS']}")
        self.failures.clear()
        self.closing = False

    def _on_end(self, rank: int, fork: Fork, exit_code: int, time_ns: int) -> None:
        self.failures.ended(rank, fork.pid, exit_code, time_ns, self.closing)

    def tell(self, otherwise: str) -> None:
        """Says what is known of the failures, or if nothing is (the ranks were no forks) what torch says."""
        self.listener.drain()
        self.say(self.failures.text() if self.failures else otherwise)

    def say(self, text: str) -> None:
        self.listener.print(f"{self.name}: {text}")

    def close(self) -> None:
        self.forks.close()
        self.listener.close()


class _Handler(ForkHandler):
    """A rank of a run, which learns when the launcher begins to end ranks."""

    def __init__(self, proc: Fork, local_rank: int, run: _Run) -> None:
        super().__init__(proc, local_rank)
        self._run = run

    def close(self, death_sig: Any = None) -> None:
        self._run.closing = True
        super().close(death_sig)


def _ignore(report: dict[str, Any]) -> None:
    """Progress that nobody watches."""


def _set_threads(ranks: int) -> None:
    """As many threads a rank as there are cores for it, where the user does not say."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // ranks))
    print(
        f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} in each of {ranks} rank{'s' * (ranks > 1)}, "
        f"on {cores} core{'s' * (cores > 1)}; set it to choose",
        file=sys.stderr,
        flush=True,
    )
