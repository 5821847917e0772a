"""What the headers of a run's traces say of it: its cluster, and whether that is still described alike."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from collectives.topology import Cluster, ClusterError, load_cluster
from neuron_dist.simulation.trace import RankTrace, TraceError

__all__ = ["cluster_note", "cluster_of", "command_of"]


def cluster_of(traces: Sequence[RankTrace]) -> Cluster:
    """The cluster on which the run was simulated, as it is described today.

    Raises :class:`TraceError` where it cannot be loaded any more, such as a YAML file that has gone.
    """
    trace = traces[0]
    said = trace.header["cluster"]
    try:
        return load_cluster(said["product"], said["instances"], said["lnc"])
    except ClusterError as error:
        raise TraceError(
            f"{trace.path}: the run was simulated on {said['name']}, but {error}"
        ) from None


def cluster_note(traces: Sequence[RankTrace], cluster: Cluster) -> str | None:
    """A warning if the cluster has been described anew since the run; None if not."""
    said = traces[0].header["cluster"]
    if said["digest"] == cluster.digest:
        return None
    return (
        f"{said['name']} was described otherwise during the run (digest {said['digest']}, now {cluster.digest}): "
        "recorded times are the run's, but links, MFU and assumptions here are today's"
    )


def command_of(traces: Sequence[RankTrace]) -> str:
    """The command line of the run, as a shell would read it."""
    said = traces[0].header.get("command", "")
    return said if isinstance(said, str) else shlex.join(map(str, said))
