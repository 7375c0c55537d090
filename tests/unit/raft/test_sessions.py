"""Control entries and client sessions: formats, and the promises one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import (
    Conflict,
    InvalidInput,
    InvariantViolated,
    Overloaded,
    ProtocolError,
    SessionExpired,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.raft import sessions
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.sessions import IDLE_MS_MIN, RESULT_BYTES_MAX, WINDOW, SessionTable
from raftwood.raft.state_machine import CommittedCommand

NONCE = bytes(range(16))


def _entry(index: int, payload: bytes) -> Entry:
    return Entry(1, index, EntryKind.CONTROL, payload)


def _command(
    sequence: int, command: bytes = b"", *, acknowledged: int = 0, session: int = 1
) -> bytes:
    return sessions.encode_command(
        command, session=session, sequence=sequence, acknowledged=acknowledged
    )


def _register(number: int = 0, sessions_max: int = 9) -> bytes:
    return sessions.encode_register(number.to_bytes(16), sessions_max=sessions_max)


class Host:
    """A table over a state machine that counts."""

    def __init__(self, result: Callable[[int, bytes], Any] | None = None) -> None:
        self.table = SessionTable()
        self.ran: list[bytes] = []
        self._result = result or (lambda number, _: b"%d" % number)
        self._index = 0

    def update(self, commands: Sequence[CommittedCommand]) -> list[Any]:
        results = []
        for command in commands:
            self.ran.append(command.payload)
            results.append(self._result(len(self.ran), command.payload))
        return results

    def apply(self, *payloads: bytes) -> Sequence[Any]:
        entries = [_entry(self._index + 1 + each, data) for each, data in enumerate(payloads)]
        self._index += len(entries)
        commands, plan = self.table.prepare(entries)
        return self.table.finish(plan, self.update(commands))


def _registered(result: Callable[[int, bytes], Any] | None = None) -> Host:
    host = Host(result)
    (answer,) = host.apply(_register())
    assert sessions.decode_session(answer) == 1
    return host


def test_control_entries_have_golden_bytes_and_come_back() -> None:
    written = [
        sessions.encode_register(NONCE, sessions_max=5),
        _command(2, b"do", session=7, acknowledged=1),
        sessions.encode_unregister(7),
        sessions.encode_tick(elapsed_ms=8, expiry_ms=9),
    ]
    assert [data.hex() for data in written] == [
        "01000102030405060708090a0b0c0d0e0f05000000",
        "02070000000000000002000000000000000100000000000000" + b"do".hex(),
        "030700000000000000",
        "0408000000000000000900000000000000",
    ]
    assert [sessions.decode_control(_entry(3, data)) for data in written] == [
        sessions.RegisterSession(NONCE, 5),
        sessions.SessionCommand(3, b"do", 7, 2, 1),
        sessions.UnregisterSession(7),
        sessions.SessionTick(8, 9),
    ]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", b"\x05", b"\x01", _register()[:-1], _command(1)[:-1], bytes([3, 1]), b"\4"],
)
def test_what_is_no_control_entry_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="entry 3"):
        sessions.decode_control(_entry(3, payload))


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProtocolError, match="negative"):
        _command(-1)
    with pytest.raises(ProtocolError, match="16 bytes"):
        sessions.encode_register(b"short", sessions_max=1)
    with pytest.raises(ProtocolError):
        sessions.decode_session(b"short")


def test_plain_commands_pass_through_as_they_are() -> None:
    table = SessionTable()
    entries = [Entry(1, 1, payload=b"a"), Entry(1, 2, payload=b"b")]
    commands, plan = table.prepare(entries)
    assert commands is entries
    results = ["any", 1]
    assert table.finish(plan, results) is results


def test_entries_that_are_no_commands_are_answered_with_nothing() -> None:
    entries = [Entry(1, 1), Entry(1, 2, payload=b"a"), Entry(1, 3, EntryKind.CHANGE_V2, b"x")]
    table = SessionTable()
    commands, plan = table.prepare(entries)
    assert commands == entries[1:2]
    assert table.finish(plan, [5]) == [None, 5, None]


def test_a_repeated_command_is_answered_without_being_run() -> None:
    host = _registered()
    assert host.apply(_command(1, b"a")) == [b"1"]
    assert host.apply(_command(1, b"a")) == [b"1"]
    assert host.ran == [b"a"]


def test_a_command_twice_in_a_batch_is_run_once() -> None:
    host = _registered()
    assert host.apply(_command(2, b"b"), _command(1, b"a"), _command(2, b"b")) == [
        b"1",
        b"2",
        b"1",
    ]
    assert host.ran == [b"b", b"a"]


def test_a_session_can_begin_work_and_end_in_one_batch() -> None:
    host = Host()
    payloads = _register(), _command(1), _command(1), sessions.encode_unregister(1), _command(1)
    *answers, last = host.apply(*payloads)
    assert answers == [sessions.encode_session(1), b"1", b"1", b""]
    assert isinstance(last, SessionExpired)
    assert len(host.table) == 0


def test_what_is_acknowledged_is_neither_answered_nor_run_again() -> None:
    host = _registered()
    host.apply(_command(1), _command(2))
    first, second = host.apply(_command(3, acknowledged=1), _command(1))
    assert first == b"3"
    assert isinstance(second, Conflict)
    # An older copy does not take an acknowledgement back.
    assert host.apply(_command(2)) == [b"2"]
    assert isinstance(host.apply(_command(1))[0], Conflict)
    assert len(host.ran) == 3


def test_a_client_can_acknowledge_any_number() -> None:
    host = _registered()
    host.apply(*(_command(sequence) for sequence in range(1, 9)))
    huge = (1 << 64) - 2
    assert host.apply(_command(huge + 1, acknowledged=huge)) == [b"9"]
    table = SessionTable.decoded(host.table.encoded())
    assert table.encoded() == host.table.encoded()


def test_a_session_that_does_not_acknowledge_is_held_up_and_goes_on_afterwards() -> None:
    host = _registered()
    host.apply(*(_command(sequence) for sequence in range(1, WINDOW + 1)))
    (refused,) = host.apply(_command(WINDOW + 1))
    assert isinstance(refused, Overloaded)
    assert host.apply(_command(WINDOW + 1, acknowledged=1)) == [b"%d" % (WINDOW + 1)]


def test_an_error_is_a_result_like_any_other() -> None:
    host = _registered(lambda number, _: InvalidInput(f"{number}" + "x" * 5000))
    (first,) = host.apply(_command(1))
    host.table = SessionTable.decoded(host.table.encoded())
    (again,) = host.apply(_command(1))
    assert type(again) is type(first) is InvalidInput
    assert again.message == first.message[:1000]


@pytest.mark.parametrize(("size", "count"), [(RESULT_BYTES_MAX + 1, 1), (RESULT_BYTES_MAX, 17)])
def test_results_that_are_too_large_to_keep_say_that_they_were_applied(
    size: int, count: int
) -> None:
    host = _registered(lambda *_: bytes(size))
    answers = host.apply(*(_command(sequence) for sequence in range(1, count + 1)))
    assert all(answer == bytes(size) for answer in answers)
    (again,) = host.apply(_command(count))
    assert isinstance(again, Conflict)
    assert "was applied" in again.message
    assert len(host.ran) == count
    # Room is made by acknowledging.
    host.apply(_command(count + 1, acknowledged=count))
    assert (host.apply(_command(count + 1)) == [bytes(size)]) is (size <= RESULT_BYTES_MAX)


def test_the_same_nonce_gets_the_same_session() -> None:
    host = Host()
    answers = host.apply(_register(1), _register(2), _register(1))
    assert [sessions.decode_session(answer) for answer in answers] == [1, 2, 1]
    host.apply(sessions.encode_unregister(1))
    assert sessions.decode_session(host.apply(_register(1))[0]) == 5


def test_an_unused_session_ends_by_ticks_alone() -> None:
    host = Host()
    host.apply(_register(1), _register(2))
    tick = sessions.encode_tick(elapsed_ms=600, expiry_ms=1000)
    host.apply(tick, _command(1, session=2), tick)
    assert isinstance(host.apply(_command(1))[0], SessionExpired)
    assert host.apply(_command(1, session=2)) == [b"1"]
    assert len(host.table) == 1


def test_one_tick_counts_a_minute_at_the_most() -> None:
    host = _registered()
    host.apply(sessions.encode_tick(elapsed_ms=10**9, expiry_ms=60_001))
    assert host.table.now_ms == 60_000
    assert len(host.table) == 1


def test_a_full_table_gives_up_the_session_that_was_idle_longest() -> None:
    host = Host()
    host.apply(_register(1, 2), _register(2, 2))
    (refused,) = host.apply(_register(3, 2))
    assert isinstance(refused, Overloaded)
    host.apply(sessions.encode_tick(elapsed_ms=IDLE_MS_MIN, expiry_ms=10**9), _register(1, 2))
    assert sessions.decode_session(host.apply(_register(3, 2))[0]) == 6
    assert isinstance(host.apply(_command(1, session=2))[0], SessionExpired)
    assert host.apply(_command(1, session=1)) == [b"1"]


def test_a_state_machine_that_breaks_the_rules_is_found_out() -> None:
    with pytest.raises(InvariantViolated, match="NoneType"):
        _registered(lambda *_: None).apply(_command(1))
    host = _registered()
    _, plan = host.table.prepare([_entry(2, _command(1))])
    with pytest.raises(InvariantViolated, match="amid a batch"):
        host.table.encoded()
    with pytest.raises(InvariantViolated, match="2 results for 1"):
        host.table.finish(plan, [b"", b""])


def test_a_stored_table_has_golden_bytes() -> None:
    host = _registered(lambda number, _: b"r" if number == 1 else Conflict("c"))
    host.apply(_command(1), _command(2), sessions.encode_tick(elapsed_ms=7, expiry_ms=99))
    expected = [1, 7, [[1, bytes(16), 0, 0, [[1, b"r"], [2, ["conflict", "c"]]]]]]
    assert msgspec.msgpack.decode(host.table.encoded()) == expected


def test_a_stored_table_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="or a newer one"):
        SessionTable.decoded(msgspec.msgpack.encode([2, 0, []]))
    twice = msgspec.msgpack.encode([1, 0, [[5, NONCE, 0, 0, []], [6, NONCE, 0, 0, []]]])
    for data in (
        b"",
        b"x",
        msgspec.msgpack.encode([1, "a", []]),
        SessionTable().encoded()[:-1],
        twice,
    ):
        with pytest.raises(StoreDamaged):
            SessionTable.decoded(data)
