"""The pytest plugin: ``@pytest.mark.neuron(ranks=4)`` runs a test in that many ranks. See docs/testing.md.

pytest loads this package in every run, so importing it must stay cheap: no torch before a test carries the mark.
That is also why it is no part of ``neuron_dist``, which imports torch.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from launch.pytest_plugin.marks import Options

MARK = "neuron"
IN_RANK = "neuron_rank"
"""Name of the plugin that stands in the process that ranks are forked from, and in the ranks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("neuron-dist", "tests in several ranks").addoption(
        "--neuron-pdb-rank",
        type=int,
        metavar="RANK",
        help="the rank that --pdb and --trace debug (default: the first that fails; with --trace, rank 0)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(ranks, cluster=None, backend='neuron', device=None, mesh=None, mesh_dim_names=None, timeout=60, "
        "env=None): run the test in that many ranks, forked processes whose process group is ready. "
        "Fixtures: rank, world_size, device, mesh.",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Turns marked functions into tests that run in ranks, once all else that turns them has done so."""
    made = yield
    if isinstance(made, list) and not collector.config.pluginmanager.has_plugin(IN_RANK):
        return [_in_ranks(item) for item in made]
    return made


def _in_ranks(item: Any) -> Any:
    if isinstance(item, pytest.Function) and item.get_closest_marker(MARK):
        from launch.pytest_plugin.item import RanksFunction

        return RanksFunction.of(item)
    return item


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.get_closest_marker(MARK) or item.config.pluginmanager.has_plugin(IN_RANK):
        return
    from launch.pytest_plugin.item import RanksFunction

    if not isinstance(item, RanksFunction):
        raise pytest.UsageError(
            f"{item.nodeid}: mark {MARK} is for test functions and for methods of plain classes; this is a "
            f"{type(item).__name__}. Move a unittest.TestCase's method to a function."
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """The process that ranks are forked from imports torch while the tests before the first marked one run."""
    if session.config.option.collectonly or session.config.pluginmanager.has_plugin(IN_RANK):
        return
    if any(item.get_closest_marker(MARK) for item in session.items):
        from launch.pytest_plugin.item import start

        start(session.config)


def _options(request: pytest.FixtureRequest) -> Options:
    plugin = request.config.pluginmanager.get_plugin(IN_RANK)
    if plugin is None or plugin.options is None:
        pytest.fail(
            f"fixture {request.fixturename!r} is for tests that run in ranks: mark the test with "
            f"@pytest.mark.{MARK}(ranks=...)",
            pytrace=False,
        )
    return plugin.options


@pytest.fixture(scope="session")
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks. A test that is parametrised over ``world_size`` runs in that many."""
    return _options(request).ranks


@pytest.fixture(scope="session")
def rank(request: pytest.FixtureRequest) -> int:
    """This process's rank."""
    _options(request)
    plugin: Any = request.config.pluginmanager.get_plugin(IN_RANK)
    return plugin.rank


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """This rank's device: the mark's ``device``, or else ``neuron`` on backend neuron and ``cpu`` on another."""
    import torch

    name = _options(request).device
    return torch.device(name, request.getfixturevalue("rank")) if name == "neuron" else torch.device(name)


@pytest.fixture(scope="session")
def mesh(request: pytest.FixtureRequest) -> DeviceMesh:
    """The mark's ``mesh=(2, 2), mesh_dim_names=("dp", "tp")``, or else one axis over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    options = _options(request)
    if options.backend is None:
        pytest.fail("fixture 'mesh' needs a process group: the mark says backend=None", pytrace=False)
    return init_device_mesh(
        options.device.partition(":")[0],
        options.mesh or (options.ranks,),
        mesh_dim_names=options.mesh_dim_names,
    )
