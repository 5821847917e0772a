"""Stores that only this machine can reach.

torch's TCPStore listens on all addresses, as IPv6, and asks for the name of every peer that it accepts, for its log.
No line of /etc/hosts matches ``::ffff:127.0.0.1``, so each rank costs a question to the name server, and five seconds, in
which the store serves nobody, where that does not answer. A store here listens on 127.0.0.1, as IPv4.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from torch.distributed import DistNetworkError, TCPStore

__all__ = ["elastic_stores", "store"]

_ADDRESS = "127.0.0.1"
_BACKLOG = 4096


def store(port: int = 0, **options: Any) -> TCPStore:
    """A store served by this process on ``port``, by default a free one; ``options`` are TCPStore's.

    Raises :class:`torch.distributed.DistNetworkError`, as TCPStore does, where the port is taken: of several agents on
    one machine, torch then lets all but the first be clients.
    """
    try:
        listener = socket.create_server((_ADDRESS, port), backlog=_BACKLOG)
    except OSError as error:
        raise DistNetworkError(f"cannot serve a store on {_ADDRESS}:{port}: {error.strerror}") from error
    port = listener.getsockname()[1]
    return TCPStore(_ADDRESS, port, is_master=True, master_listen_fd=listener.detach(), **options)


@contextlib.contextmanager
def elastic_stores() -> Iterator[None]:
    """Lets the stores of torch's elastic agent that are for ``localhost`` be such stores."""
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    def connected(host: str, port: int, is_master: bool, **options: Any) -> TCPStore:
        if is_master and host in ("localhost", _ADDRESS):
            return store(port, **options)
        return TCPStore(host, port, is_master=is_master, **options)

    def served(_: object, master_addr: str, master_port: int) -> TCPStore:
        return connected(master_addr, master_port, is_master=True, multi_tenant=True)

    ours: list[tuple[Any, str, Any]] = [
        (backend, "TCPStore", connected),
        (DynamicRendezvousHandler, "_create_tcp_store_server", served),
    ]
    torchs = [getattr(owner, name) for owner, name, _ in ours]
    for owner, name, function in ours:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), function in zip(ours, torchs, strict=True):
            setattr(owner, name, function)
