"""Stores of this machine alone."""

import socket
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, TCPStore

from neuron_dist import loopback


def test_a_store_serves_clients_on_the_loopback_address():
    server = loopback.store(wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=5))
    client.set("key", "value")
    assert server.get("key") == b"value"
    with pytest.raises(OSError), socket.create_connection(("::1", server.port), timeout=5):
        pass


def test_a_port_that_is_taken_is_told():
    server = loopback.store(wait_for_workers=False)
    with pytest.raises(DistNetworkError, match=f"127.0.0.1:{server.port}: .*in use"):
        loopback.store(server.port, wait_for_workers=False)


def test_only_stores_for_localhost_are_replaced():
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backend

    with loopback.elastic_stores():
        here = backend.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        client = backend.TCPStore("localhost", here.port, is_master=False)
        everywhere = backend.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    assert here.host == client.host.replace("localhost", "127.0.0.1") == "127.0.0.1"
    assert everywhere.host == "0.0.0.0"
    assert backend.TCPStore is TCPStore
