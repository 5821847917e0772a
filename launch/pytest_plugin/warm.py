"""The other side: the process that ranks are forked from collects the tests once more, and a rank runs one of them.

:func:`prepare` makes a pytest session of the same arguments, as pytest-xdist's workers have it, and collects the file
of a test. It runs nothing: fixtures are set up in the ranks, all of them in each rank, and torn down there.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from launch.pytest_plugin import IN_RANK
from launch.pytest_plugin.marks import Options
from launch.pytest_plugin.records import Place, Record, SessionSpec, TestFailed
from launch.pytest_plugin.terminal import Terminal, capture
from neuron_dist.testing import nursery

__all__ = ["prepare", "run_test"]

ALTERED = {
    "capture": "no",
    "basetemp": None,
    "maxfail": 0,
    # what only the test process may do: write reports, choose tests, talk to workers
    "cacheclear": False,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "htmlpath": None,
    "lf": False,
    "maxprocesses": None,
    "newfirst": False,
    "numprocesses": None,
    "pastebin": None,
    "report_log": None,
    "stepwise": False,
    "xmlpath": None,
}
"""Options that the ranks' session has its own values of."""


class _RankPlugin:
    """What a rank adds to pytest: its process group, and notes of what the test process shall know."""

    def __init__(self) -> None:
        self.collect_errors: dict[str, str] = {}
        self.options: Options | None = None
        self.rank = -1
        self.record = Record(-1)
        self.failed = False
        self.terminal: Terminal | None = None
        self.pdb_rank: int | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps all items, before others deselect some: the test process has chosen."""
        _items.update((item.nodeid, item) for item in items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_errors[report.nodeid] = report.longreprtext

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Runs the phases once, inside of what other plugins wrap around them, whoever would run them again."""
        for report in runtestprotocol(item, nextitem=None, log=False):
            self.record.reports.append(
                item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
            )
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool:
        """The test process keeps the time."""
        return True

    def pytest_runtest_setup(self) -> None:
        """After marks that skip, before fixtures."""
        assert self.options is not None
        if self.options.backend is not None:
            nursery.connect(self.options.backend)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        yield
        if not self.failed:
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        self.failed |= report.failed
        if call.excinfo is not None and self.record.when is None:
            self.record.when, self.record.time_ns = call.when, time.monotonic_ns()
            self.record.error = _picklable(call.excinfo.value)
            if report.failed:
                self._choose_debugged(item.config)
        return report

    def _choose_debugged(self, config: pytest.Config) -> None:
        """pytest debugs a failure in one rank only."""
        if not config.option.usepdb or self.terminal is None:
            return
        if self.pdb_rank is None:
            chosen = self.terminal.claim(self.rank)
        else:
            chosen = self.rank == self.pdb_rank
        if not chosen:
            config.pluginmanager.unregister(name="pdbinvoke")

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        warning_message.source = None
        if _picklable(warning_message) is None:
            warning_message.message = str(warning_message.message)
            warning_message.category = UserWarning
        self.record.warnings.append((warning_message, when, nodeid, location))

    def pytest_assertion_pass(self, item: pytest.Item, lineno: int, expl: str) -> None:
        self.record.passed[os.fspath(item.path), lineno] = expl


_session: pytest.Session | None = None
_plugin = _RankPlugin()
_items: dict[str, pytest.Item] = {}
_collected: set[str] = set()


def prepare(spec: SessionSpec, path: str) -> None:
    """Collects the tests of the file ``path``, once. Raises RuntimeError with what went wrong."""
    global _session
    if path in _collected:
        return
    with _silenced():
        try:
            _session = _session or _start(spec)
            _session.perform_collect([path])
        except BaseException as error:
            raise RuntimeError(
                f"{path} could not be collected in the process that ranks are forked from: {error!r}"
            ) from error
    _collected.add(path)


def _start(spec: SessionSpec) -> pytest.Session:
    options = {**spec.options, **{k: v for k, v in ALTERED.items() if k in spec.options}}
    options["plugins"] = [*options["plugins"], "no:terminal"]
    config = pytest.Config.fromdictargs(options, spec.args)
    if spec.workerinput is not None:
        config.workerinput = spec.workerinput  # type: ignore[attr-defined]
    config.pluginmanager.register(_plugin, IN_RANK)
    config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return session


@contextmanager
def _silenced() -> Iterator[None]:
    """What modules print when they are imported has been shown by the test process."""
    streams = sys.stdout, sys.stderr
    saved = [os.dup(fd) for fd in (1, 2)]
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        for fd in (1, 2):
            os.dup2(nowhere.fileno(), fd)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for fd, own in zip((1, 2), saved, strict=True):
                os.dup2(own, fd)
                os.close(own)


def run_test(nodeid: str, path: str, spec: SessionSpec, options: Options, place: Place) -> Record:
    """Runs one test in this rank; raises :class:`TestFailed` if it failed."""
    prepare(spec, path)  # has been done before the fork, unless it failed there
    if nodeid not in _items:
        errors = "\n".join(_plugin.collect_errors.values())
        raise RuntimeError(
            f"{nodeid} was not among the tests of {path} when they were collected in the process that ranks are "
            f"forked from: names of tests must not depend on the process\n{errors}"
        )
    item, rank = _items[nodeid], int(os.environ["RANK"])
    config, plugin = item.config, _plugin
    plugin.options, plugin.rank, plugin.record = options, rank, Record(rank)
    plugin.terminal, plugin.pdb_rank = Terminal(nursery.inherited), place.pdb_rank
    _use_terminal(config, plugin.terminal, place, rank, options.ranks)
    _use_folder(config, place)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("c10d-NullHandler") and isinstance(logger, logging.Logger):
            logger.disabled = True  # torch means them to go nowhere; pytest would show each failed call once more
    config.option.runxfail = True  # the test process judges what was expected to fail
    if config.option.trace and rank != (place.pdb_rank or 0):
        config.pluginmanager.unregister(name="pdbtrace")
    config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    for stream in (sys.stdout, sys.stderr):
        getattr(stream, "finish", stream.flush)()
    for fd, kept in enumerate(nursery.outputs, start=1):
        os.dup2(kept, fd)  # what is still written belongs to no test's phase, and not on the terminal
    if plugin.failed:
        raise TestFailed(plugin.record)
    return plugin.record


def _use_terminal(config: pytest.Config, terminal: Terminal, place: Place, rank: int, world_size: int) -> None:
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    manager._method = "fd"  # it has streams to suspend for a debugger, whatever --capture says
    manager._global_capturing = capture(place.capture, terminal, nursery.outputs, rank, world_size)
    manager._global_capturing.start_capturing()
    manager.suspend_global_capture()
    if config.option.usepdb:  # pytest's debugger asks the terminal reporter for its writer
        config.pluginmanager.register(_Reporter(config), "terminalreporter")


class _Reporter:
    """As much of pytest's terminal reporter as its debugger uses."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @property
    def _tw(self) -> Any:
        from _pytest.config import create_terminal_writer

        return create_terminal_writer(self.config, sys.stdout)


def _use_folder(config: pytest.Config, place: Place) -> None:
    """tmp_path is one directory for all ranks: names are counted in each rank, not chosen by who comes first."""
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = place.folder
    factory._retention_policy = "all"
    made: set[str] = set()

    def mktemp(basename: str, numbered: bool = True) -> Any:
        name = factory._ensure_relative_to_basetemp(basename)
        if numbered:
            name = next(n for n in (f"{name}{i}" for i in count()) if n not in made)
        elif name in made:
            raise FileExistsError(f"{place.folder / name} has been made by this test before")
        made.add(name)
        path = place.folder / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    factory.mktemp = mktemp


def _picklable(thing: Any) -> Any:
    try:
        pickle.loads(pickle.dumps(thing))
    except Exception:
        return None
    return thing
