"""What a raft host reads of sessions, control entries and stored tables, as targets."""

from raftwood.base.errors import Conflict, ProtocolError, StoreError
from raftwood.raft import sessions
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.sessions import SessionTable

_REGISTER = sessions.encode_register(bytes(range(16)), sessions_max=3)


def _command(sequence: int) -> bytes:
    return sessions.encode_command(b"do", session=1, sequence=sequence, acknowledged=1)


def _applied(*payloads: bytes) -> SessionTable:
    table = SessionTable()
    entries = [
        Entry(1, index, EntryKind.CONTROL, payload) for index, payload in enumerate(payloads, 1)
    ]
    commands, plan = table.prepare(entries)
    results = [b"done" if number % 2 else Conflict("no") for number in range(len(commands))]
    table.finish(plan, results)
    return table


def entry_target(data: bytes) -> None:
    """Any control entry is applied, or is a ProtocolError."""
    try:
        table = _applied(_REGISTER, _command(2), data, data)
    except ProtocolError:
        return
    assert SessionTable.decoded(table.encoded()).encoded() == table.encoded()


def entry_seeds() -> list[bytes]:
    tick = sessions.encode_tick(elapsed_ms=500, expiry_ms=1000)
    return [_REGISTER, _command(2), _command(3), sessions.encode_unregister(1), tick]


def table_target(data: bytes) -> None:
    """Any stored table is one that is stored alike again, or an error of the store."""
    try:
        encoded = SessionTable.decoded(data).encoded()
    except StoreError:
        return
    assert SessionTable.decoded(encoded).encoded() == encoded


def table_seeds() -> list[bytes]:
    tables = [_applied(), _applied(_REGISTER), _applied(_REGISTER, _command(2), _command(3))]
    return [table.encoded() for table in tables]
