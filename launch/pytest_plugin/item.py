"""A marked test in the test process: it starts the ranks when it is set up, and is judged by what they report.

All three phases of the test run in the ranks, in one launch. Here each phase raises what the first rank that did not
pass it raised, so that pytest's own rules for skips, expected failures and exits hold; the report's text is then
replaced by one of all ranks (:mod:`launch.pytest_plugin.outcome`).
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from launch.pytest_plugin.marks import Options, options_of
from launch.pytest_plugin.outcome import Outcome
from launch.pytest_plugin.records import Place, SessionSpec
from launch.pytest_plugin.terminal import Terminal
from launch.pytest_plugin.warm import prepare, run_test
from neuron_dist.testing.ranks import close_nursery, launched, start_nursery

__all__ = ["RanksFunction", "start"]

DEFAULT_TIMEOUT_S = 60.0


class RanksFunction(pytest.Function):
    """A test function whose fixtures and body run in ranks."""

    options: Options
    outcome: Outcome | None = None
    timeout_elsewhere: float | None = None
    """pytest-timeout's limit for this test."""

    @classmethod
    def of(cls, function: pytest.Function) -> RanksFunction:
        made: RanksFunction = cls.from_parent(
            function.parent,
            name=function.name,
            callspec=getattr(function, "callspec", None),
            callobj=function.obj,
            fixtureinfo=function._fixtureinfo,
            keywords=function.keywords,
            originalname=function.originalname,
        )
        made.own_markers = function.own_markers
        made.options = options_of(made)
        return made

    def setup(self) -> None:
        start(self.config)
        runner: _Runner = self.config.pluginmanager.get_plugin(_Runner.NAME)  # type: ignore[assignment]
        self.outcome = None
        self.outcome = runner.run(self)
        for title, key, text in self.outcome.outputs():
            self.add_report_section(title, key, text)
        self.outcome.raise_from("setup")

    def runtest(self) -> None:
        assert self.outcome is not None
        self.outcome.raise_from("call")

    def teardown(self) -> None:
        super().teardown()
        if self.outcome is not None:
            self.outcome.raise_from("teardown")


def start(config: pytest.Config) -> None:
    """Starts the process that ranks are forked from, if it does not run yet."""
    if not config.pluginmanager.has_plugin(_Runner.NAME):
        config.pluginmanager.register(_Runner(config), _Runner.NAME)
    start_nursery()


class _Runner:
    """The part of the plugin that stands once a test is marked."""

    NAME = "neuron_runner"

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spec = _spec(config)
        self.terminal = _terminal(config)
        self.count = 0

    def run(self, item: RanksFunction) -> Outcome:
        options, path = item.options, str(item.path)
        env = dict(options.env or {})
        if options.cluster is not None:
            env["NEURON_DIST_CLUSTER"] = options.cluster
        place = Place(self._folder(item), self.config.option.capture, self.config.option.neuron_pdb_rank)
        self.terminal.unclaim()
        with launched(
            options.ranks,
            run_test,
            (item.nodeid, path, self.spec, options, place),
            prepare=(prepare, (self.spec, path)),
            name=item.nodeid,
            env=env,
            inherit=self.terminal.descriptors,
            separate_stderr=True,
        ) as launch:
            timeout = options.timeout or item.timeout_elsewhere or DEFAULT_TIMEOUT_S
            while True:
                try:
                    results = launch.watch(timeout, paused=lambda: self.terminal.holder() is not None)
                    break
                except KeyboardInterrupt:
                    holder = self.terminal.holder()
                    if holder is None:
                        raise
                    launch.signal(holder, signal.SIGINT)  # Ctrl-C at the debugger's prompt
            outcome = Outcome(item, results, launch)
        outcome.tell_warnings()
        self._keep_folder(place.folder, failed=outcome.when is not None)
        return outcome

    def _folder(self, item: RanksFunction) -> Path:
        """A new temporary directory for a test; the ranks make it, if they need it."""
        self.count += 1
        name = re.sub(r"\W", "_", item.name)[:30]
        factory: Any = self.config._tmp_path_factory  # type: ignore[attr-defined]
        return factory.getbasetemp() / f"{name}-ranks{self.count}"

    def _keep_folder(self, folder: Path, failed: bool) -> None:
        policy = self.config.getini("tmp_path_retention_policy")
        if policy == "none" or (policy == "failed" and not failed):
            shutil.rmtree(folder, ignore_errors=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """--pdb debugs the rank that fails, there, and not this process afterwards."""
        manager = self.config.pluginmanager
        debugger = isinstance(item, RanksFunction) and manager.unregister(name="pdbinvoke")
        try:
            return (yield)
        finally:
            if debugger:
                manager.register(debugger, "pdbinvoke")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if isinstance(item, RanksFunction) and item.outcome is not None:
            item.outcome.amend(report)
        return report

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """pytest-timeout's limit becomes the ranks' own, so that the hung ones are named."""
        if not isinstance(item, RanksFunction):
            return None
        item.timeout_elsewhere = settings.timeout
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if isinstance(item, RanksFunction) else None

    def pytest_unconfigure(self) -> None:
        close_nursery()  # it holds a session of these tests


def _spec(config: pytest.Config) -> SessionSpec:
    options = {}
    for name, value in vars(config.option).items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise pytest.UsageError(
                f"the option {name!r} has the value {value!r}, which ranks cannot be given: {error}"
            ) from error
        options[name] = value
    return SessionSpec(list(config.args), options, getattr(config, "workerinput", None))


def _terminal(config: pytest.Config) -> Terminal:
    """This process's own streams, also while pytest captures them."""
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    captures: Any = getattr(manager, "_global_capturing", None)
    own = [
        getattr(getattr(captures, name, None), "targetfd_save", fd) for fd, name in enumerate(("in_", "out", "err"))
    ]
    return Terminal.of_this_process([os.dup(fd) for fd in own])
