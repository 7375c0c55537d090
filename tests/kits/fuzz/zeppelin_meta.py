"""What Zeppelin's meta server is told and asked: whatever it is, it has an answer."""

from collections.abc import Callable

from raftwood.base.errors import InvalidInput
from raftwood.raft.core import Entry
from raftwood.zeppelin.meta.changes import (
    AddUser,
    Change,
    ChangeMaster,
    CreateTable,
    NodeDown,
    RegisterNode,
    SetMaster,
    decode_batch,
    encode_batch,
)
from raftwood.zeppelin.meta.heartbeats import NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.queries import (
    BehindQuery,
    Query,
    ReportsQuery,
    TopologyQuery,
    decode_query,
    encode_query,
)
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import NodeAddresses, NodeId, TableConfig, User
from raftwood.zeppelin.settings import ZeppelinMetaSettings

_A = NodeId("a")
_SETTINGS = ZeppelinMetaSettings()
_REGISTER = RegisterNode(_A, NodeAddresses(data="a:1", replication="a:2", admin="a:3"), "rack", 1)
_BEGIN = encode_batch((_REGISTER, CreateTable("t", TableConfig(partitions=2, replicas=1))))


def target(data: bytes) -> None:
    """Most inputs end at the parsers; those that do not are carried out."""
    if _is_refused(decode_batch, data) and _is_refused(decode_query, data):
        return
    machine = MetaMachine(_SETTINGS, now_ms=lambda: 1_000, term=lambda: 1)
    entries = [Entry(1, 1, payload=_BEGIN), Entry(1, 2, payload=data), Entry(1, 3, payload=data)]
    assert len(machine.update(entries)) == 3
    assert isinstance(machine.lookup(data), bytes)
    machine.plan()


def _is_refused(decode: Callable[[bytes], object], data: bytes) -> bool:
    try:
        decode(data)
    except InvalidInput:
        return True
    return False


def seeds() -> list[bytes]:
    told: list[tuple[Change, ...]] = [
        (_REGISTER, NodeDown(_A, 1)),
        (ChangeMaster("t", 0, 1, None, (_A,)), SetMaster("t", 1, _A)),
        (AddUser(User(name="u", table="t", password_hash="h")),),
    ]
    asked: list[Query] = [
        NodeHeartbeat(_A, 1, 1, (ReplicaOffset(1, 0, 1, 5, 100, 20),)),
        TopologyQuery(1),
        BehindQuery(2),
        ReportsQuery(),
    ]
    return [*(encode_batch(batch) for batch in told), *(encode_query(query) for query in asked)]
