"""What somebody with the readers' secret may call: nothing that changes anything."""

import pytest

from raftwood.logservice import wire
from raftwood.net import Method
from raftwood.net.identity import READER_ROLE
from raftwood.raft import admin, repair, snapshotter, transport
from raftwood.raft import client_protocol as remote
from raftwood.server import store

MODULES = (store, wire, transport, repair, snapshotter, admin, remote)
METHODS = {
    value.name: value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, Method)
}
READING = {
    "keeper-query",
    "log-connect",
    "log-info",
    "log-locate",
    "log-read",
    "raft-groups",
    "raft-read",
    "raft-status",
    "store-describe",
    "store-metrics",
}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_reader_may_call_what_reads_alone(name: str) -> None:
    roles = METHODS[name].roles
    assert (roles is None or READER_ROLE in roles) is (name in READING)


def test_all_that_reads_is_there() -> None:
    assert set(METHODS) > READING
