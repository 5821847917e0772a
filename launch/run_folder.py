"""A run's folder as an argument: its traces, and what is wrong with it as an error of usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["folder_argument", "or_usage_error"]

Result = TypeVar("Result")


def folder_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """DIR, the folder of a trace."""
    return click.argument("folder", metavar="DIR", type=click.Path())(command)


def or_usage_error(work: Callable[[], Result]) -> Result:
    """What ``work`` gives; a trace that cannot be read, or an op or cluster that is unknown here, is an error of
    usage."""
    from collectives.schedule import ScheduleError
    from collectives.topology import ClusterError
    from neuron_dist.simulation.trace import TraceError

    try:
        return work()
    except (TraceError, ScheduleError, ClusterError) as error:
        raise click.UsageError(str(error)) from None
