"""A log shard's entries and snapshots, and what its clients and stores say, for a mutator."""

import zlib
from contextlib import suppress

from raftwood.base.errors import ProtocolError, RaftwoodError, StoreDamaged, UnsupportedVersion
from raftwood.logservice.errors import NotLeaseholder
from raftwood.logservice.log_rules import LogShardState
from raftwood.logservice.log_state_machine import LogStateMachine, restored
from raftwood.logservice.records import (
    Record,
    RestoreBegin,
    RestoreFinish,
    UpdateKind,
    encode_begin,
    encode_finish,
    encode_restored,
    encode_update,
    encode_user_entry,
)
from raftwood.logservice.server.shard_service import is_user_entry
from raftwood.logservice.wire import (
    decode_append,
    decode_lsns,
    decode_records,
    encode_append,
    encode_lsns,
    encode_records,
)
from raftwood.raft.core import EntryKind
from raftwood.raft.entry_format import LogEntry

_PRODUCER = b"p" * 16
_ANSWERS = 3
_BEGIN = RestoreBegin(7, 60, 0, 5, 3)
_BEFORE = (
    [encode_update(UpdateKind.LEASEHOLDER, 3)],
    [encode_begin(_BEGIN)],
    [encode_begin(_BEGIN), encode_finish(RestoreFinish(7, 90, 0))],
)
"""A shard in use, one that is being restored, and one that was."""


def _saved(state: LogShardState) -> bytes:
    machine = LogStateMachine()
    machine.state = state
    return b"".join(machine.save_snapshot(None, lambda: False))  # type: ignore[arg-type]


def entry_target(data: bytes) -> None:
    """Every entry is taken or refused; only what is taken is a record, and all can be saved.

    Inputs take turns with the shards that they come to.
    """
    state = LogShardState()
    for index, entry in enumerate(_BEFORE[zlib.crc32(data) % len(_BEFORE)], 1):
        assert isinstance(state.apply(index, entry), int)
    for index in (5, 6):
        answer = state.apply(index, data)
        assert isinstance(answer, int | RaftwoodError)
        is_record = is_user_entry(LogEntry(index, 1, EntryKind.NORMAL, data))
        lsn = None if state.is_restoring else state.lsns.lsn_of(index)
        is_shown = is_record and lsn is not None and state.hole_at(lsn) is None
        assert not (is_shown and isinstance(answer, RaftwoodError))
    saved = _saved(state)
    assert _saved(restored(saved)) == saved
    state.info(next_lsn=state.lsns.lsn_from(7))


def entry_seeds() -> list[bytes]:
    """Valid inputs for `entry_target`."""
    return [
        encode_user_entry(b"data", holder=3),
        encode_user_entry(b"", holder=4, producer=_PRODUCER, sequence=1),
        encode_user_entry(b"late", holder=3, producer=_PRODUCER, sequence=9, is_ordered=False),
        *(encode_update(kind, 1) for kind in UpdateKind if kind is not UpdateKind.USER),
        encode_begin(_BEGIN),
        encode_restored(encode_user_entry(b"data", holder=3)[26:], 80),
        encode_finish(RestoreFinish(7, 90, 1)),
    ]


def snapshot_target(data: bytes) -> None:
    """What is taken can be worked with; all else is told."""
    try:
        state = restored(data)
    except (StoreDamaged, UnsupportedVersion):
        return
    with suppress(RaftwoodError):
        state.apply(1 << 40, encode_user_entry(b"data", holder=3, producer=_PRODUCER, sequence=2))
    state.apply((1 << 40) + 1, encode_update(UpdateKind.TRUNCATE, 20))
    state.has_holes(1, 1 << 41)
    state.info(next_lsn=1 << 41)


def snapshot_seeds() -> list[bytes]:
    """Valid inputs for `snapshot_target`."""
    state = LogShardState()
    found = [_saved(state)]
    for index, entry in enumerate([*entry_seeds(), *entry_seeds()], 1):
        state.apply(index, entry)
        state.applied = index
        found.append(_saved(state))
    return found


def append_target(data: bytes) -> None:
    """What is taken is said in the same bytes again; all else is a ProtocolError."""
    try:
        shard, flags, entries = decode_append(data)
    except ProtocolError:
        return
    if flags in (0, 1):
        assert encode_append(shard, entries, forward=bool(flags)) == data


def append_seeds() -> list[bytes]:
    """Valid inputs for `append_target`."""
    return [encode_append(7, entry_seeds(), forward=True), encode_append(1, [b"x"])]


def answer_target(data: bytes) -> None:
    """An answer has as many parts as were asked for, or is a ProtocolError."""
    with suppress(ProtocolError):
        results = decode_lsns(data, _ANSWERS)
        assert len(results) == _ANSWERS
        assert all(0 <= each < 1 << 64 for each in results if isinstance(each, int))


def answer_seeds() -> list[bytes]:
    """Valid inputs for `answer_target`."""
    return [encode_lsns([1, 2, 1 << 60]), encode_lsns([5, NotLeaseholder("held", 3), 6])]


def records_target(data: bytes) -> None:
    """What is taken is said in the same bytes again; all else is a ProtocolError."""
    try:
        records, next_lsn = decode_records(data)
    except ProtocolError:
        return
    assert _encoded(records, next_lsn) == data


def _encoded(records: list[Record], next_lsn: int) -> bytes:
    kinds = bytes(each.kind for each in records)
    lsns = [each.lsn for each in records]
    return b"".join(encode_records(next_lsn, lsns, kinds, [each.data for each in records]))


def records_seeds() -> list[bytes]:
    """Valid inputs for `records_target`."""
    data = encode_user_entry(b"data", holder=3)
    return [
        b"".join(encode_records(9, [3, 5], bytes([0, 3]), [data, b""])),
        b"".join(encode_records(1, [], b"", [])),
    ]
