"""Addresses for processes that are killed and come back."""

import socket

import pytest

from raftwood.base.errors import InternalError
from raftwood.server import child_processes
from raftwood.server.child_processes import free_addresses

FIRST_OF_CONNECTIONS = 32_768
"""The first port that Linux gives to a connection, unless somebody set another."""


def test_free_addresses_have_ports_that_no_connection_takes_and_nobody_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ports = [int(address.rpartition(":")[2]) for address in free_addresses(20)]
    assert len(set(ports)) == 20
    assert max(ports) < FIRST_OF_CONNECTIONS
    monkeypatch.setattr(child_processes, "_PORTS", ports[:2])
    with socket.create_server(("127.0.0.1", ports[0])):
        assert free_addresses(1) == [f"127.0.0.1:{ports[1]}"]
        with pytest.raises(InternalError, match="no 2 ports are free"):
            free_addresses(2)
