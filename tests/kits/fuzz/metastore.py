"""What a replicated metastore is told and asked: whatever it is, it has an answer."""

from raftwood.base.seams import Compare, RemoveKey, SetKey
from raftwood.metastore import commands, queries
from raftwood.metastore.state_machine import MetaStateMachine, encode_advance, encode_command
from raftwood.raft.core import Entry


def target(data: bytes) -> None:
    machine = MetaStateMachine()
    assert len(machine.update([Entry(1, 1, payload=data), Entry(1, 2, payload=data)])) == 2
    assert machine.lookup(data)


def seeds() -> list[bytes]:
    then = (SetKey("a", b"1"), RemoveKey("b"))
    told: list[commands.Command] = [
        commands.Transact((Compare("a", 0),), then, (SetKey("c", b""),)),
        commands.GrantLease(900),
        commands.KeepAlive(1),
        commands.RevokeLease(1),
    ]
    asked: list[queries.Query] = [
        queries.GetQuery("a"),
        queries.RangeQuery("a", "", None, 10),
        queries.ChangesQuery("", 0, 10),
        queries.DescribeQuery(),
    ]
    return [
        encode_advance(before_ms=0, now_ms=400),
        *(encode_command(command) for command in told),
        *(queries.encode_query(query) for query in asked),
    ]
