"""However entries are cut into batches, they come to the same; what was refused is no record."""

import random
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import Conflict, InvalidInput, RaftwoodError
from raftwood.logservice.errors import NotLeaseholder
from raftwood.logservice.log_rules import LogShardState
from raftwood.logservice.log_state_machine import LogStateMachine, restored
from raftwood.logservice.records import (
    HEAD,
    RESTORED,
    SEALED,
    VERSION,
    RecordKind,
    RestoreBegin,
    RestoreFinish,
    UpdateKind,
    encode_begin,
    encode_finish,
    encode_restored,
    encode_update,
    encode_user_entry,
)
from raftwood.logservice.server.shard_service import kind_of
from raftwood.raft.core import EntryKind
from raftwood.raft.entry_format import LogEntry
from raftwood.raft.state_machine import ExtraFiles

U64_MAX = (1 << 64) - 1


class _Files(ExtraFiles):
    def add(self, name: str, path: str) -> None:  # noqa: ARG002
        raise AssertionError("a log shard has no files")


class _Command(msgspec.Struct):
    index: int
    payload: bytes


def _snapshot(state: LogShardState) -> bytes:
    machine = LogStateMachine()
    machine.state = state
    return b"".join(machine.save_snapshot(_Files(), lambda: False))


def _plain(results: list[int | RaftwoodError]) -> list[Any]:
    return [each if isinstance(each, int) else (type(each), str(each)) for each in results]


def _number(random_source: random.Random) -> int:
    usual = random_source.randrange(60)
    return random_source.choice([usual, usual, usual, usual, (1 << 62) + usual, U64_MAX])


def _payload(random_source: random.Random) -> bytes:
    """Entries as clients send them, and as no client should."""
    pick = random_source.random()
    number = random_source.randrange(60)
    if pick < 0.55:
        return encode_user_entry(
            b"x",
            holder=random_source.choice([0, 0, 0, 1, 2, SEALED]),
            producer=bytes([random_source.randrange(4)]) * 16,
            sequence=random_source.choice([1, 2, 3, 4, 5, number, U64_MAX]),
            is_ordered=random_source.random() < 0.7,
        )
    if pick < 0.7:
        return encode_restored(bytes(4) + bytes(8) + b"old", _number(random_source))
    if pick < 0.75:
        return encode_begin(
            RestoreBegin(
                1,
                truncated_lsn=random_source.choice([0, 3, U64_MAX]),
                required_lsn=random_source.choice([0, 0, 2]),
                tso=random_source.choice([1, 9, U64_MAX]),
                holder=random_source.choice([0, 1]),
            )
        )
    if pick < 0.85:
        records = random_source.randrange(6)
        return encode_finish(RestoreFinish(1, _number(random_source), records))
    if pick < 0.95:
        kind = random_source.choice(
            [
                UpdateKind.LEASEHOLDER,
                UpdateKind.TRUNCATE,
                UpdateKind.TSO,
                UpdateKind.REQUIRED,
                UpdateKind.FILL,
            ]
        )
        is_end = kind is UpdateKind.LEASEHOLDER and random_source.random() < 0.1
        return encode_update(kind, SEALED if is_end else number)
    version, kind_number = random_source.choice([(2, 2), (1, 258), (1, 9), (0, 0)])
    flags = random_source.choice([0, 1, RESTORED])
    return HEAD.pack(version, flags, bytes(16), number, kind_number, 0) + b"?"


def _kinds(state: LogShardState, commands: list[_Command]) -> dict[int, RecordKind]:
    """What a reader sees, by index."""
    kinds = {}
    for command in commands:
        lsn = state.lsns.lsn_of(command.index)
        if lsn is not None and lsn >= state.first_lsn and not state.is_restoring:
            entry = LogEntry(command.index, 1, EntryKind.NORMAL, command.payload)
            kinds[command.index] = kind_of(state, entry)
    return kinds


@pytest.mark.parametrize("seed", range(100))
def test_batches_of_any_size_come_to_the_same_and_only_what_was_taken_is_shown(seed: int) -> None:
    random_source = random.Random(seed)
    one, many = LogShardState(), LogShardState()
    commands: list[_Command] = []
    results: list[int | RaftwoodError] = []
    index = 3
    while len(commands) < 150:
        batch = []
        for _ in range(random_source.randrange(1, 12)):
            index += random_source.choice([1, 1, 1, 1, 3])  # elections stand between
            batch.append(_Command(index, _payload(random_source)))
        found = []
        for command in batch:
            found.append(one.apply(command.index, command.payload))
            one.applied = command.index
        assert _plain(many.apply_all(batch)) == _plain(found)
        assert _snapshot(many) == _snapshot(one)
        if random_source.random() < 0.1:
            many = restored(_snapshot(many))
        commands += batch
        results += found
    kinds = _kinds(one, commands)
    for command, result in zip(commands, results, strict=True):
        kind = kinds.get(command.index)
        is_record = not isinstance(result, RaftwoodError) and result == one.lsns.lsn_of(
            command.index
        )
        is_user = command.payload[0] == VERSION and command.payload[26:30] == b"\0\0\0\2"
        if kind is not None:
            assert (kind is RecordKind.USER) == (is_user and is_record)


def _restored_shard(state: LogShardState, index: int, lsns: range) -> int:
    """Restore records at LSNs; the last index."""
    begin = encode_begin(RestoreBegin(7, truncated_lsn=0, required_lsn=0, tso=1, holder=0))
    payloads = [begin]
    payloads += [encode_restored(bytes(12) + b"%d" % lsn, lsn) for lsn in lsns]
    payloads.append(encode_finish(RestoreFinish(7, lsns[-1] + 1, len(lsns))))
    for payload in payloads:
        index += 1
        (result,) = state.apply_all([_Command(index, payload)])
        assert isinstance(result, int)
    return index


def test_appends_to_a_restored_shard_go_on_with_its_lsns() -> None:
    state = LogShardState()
    index = _restored_shard(state, 3, range(1000, 1010))
    for sequence in range(1, 5):
        entry = encode_user_entry(b"new", holder=0, producer=b"p" * 16, sequence=sequence)
        (lsn,) = state.apply_all([_Command(index + sequence, entry)])
        assert lsn == 1009 + sequence


def test_a_batch_of_a_restore_that_comes_late_is_no_record() -> None:
    state = LogShardState()
    index = _restored_shard(state, 3, range(1000, 1010)) + 1
    late = encode_restored(bytes(12) + b"again", 1005)
    (result,) = state.apply_all([_Command(index, late)])
    assert isinstance(result, Conflict)
    entry = LogEntry(index, 1, EntryKind.NORMAL, late)
    assert kind_of(state, entry) is RecordKind.INTERNAL


def test_what_was_refused_before_a_restore_hides_no_restored_record() -> None:
    state = LogShardState()
    gap = encode_user_entry(b"early", holder=0, producer=b"p" * 16, sequence=9)
    state.apply_all([_Command(5, gap)])
    _restored_shard(state, 5, range(1, 11))
    assert not state.has_holes(1, 10)


def test_nobody_appends_to_a_sealed_log_not_even_under_the_lease_that_sealed_it() -> None:
    state = LogShardState()

    def append(index: int, sequence: int, holder: int) -> int | RaftwoodError:
        entry = encode_user_entry(b"1234", holder=holder, producer=b"p" * 16, sequence=sequence)
        return state.apply_all([_Command(index, entry)])[0]

    assert [append(index, index, 0) for index in (1, 2, 3)] == [1, 2, 3]
    state.apply_all([_Command(4, encode_update(UpdateKind.LEASEHOLDER, SEALED))])
    for holder in (0, SEALED):
        assert isinstance(append(5, 4, holder), NotLeaseholder)
        assert isinstance(append(6, 5, holder), NotLeaseholder)
    above = state.apply_all([_Command(7, encode_update(UpdateKind.LEASEHOLDER, SEALED + 1))])
    assert isinstance(above[0], InvalidInput)
    assert (state.sealed_lsn, state.appended_bytes) == (4, 12)


def test_a_snapshot_from_before_bytes_were_counted_is_read() -> None:
    state = LogShardState()
    state.apply_all([_Command(1, encode_update(UpdateKind.TSO, 5))])
    data = bytearray(_snapshot(state))
    assert data[4] == 3
    assert data[5] == 0x90 + 13  # fields
    data[4], data[5] = 2, 0x90 + 12
    old = restored(bytes(data[:-1]))
    assert (old.tso, old.appended_bytes) == (6, 0)
