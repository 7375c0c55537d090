"""The short way of requests that most are: GET, SET, MGET, MSET, INCR and others on one key.

It answers what `commands.execution.execute` would, in one piece for all requests of a turn. What is
not plain (a key that is elsewhere, a name in other letters, anything that is refused) it leaves to
that, before anything of it is done.
"""

from binascii import crc_hqx
from operator import itemgetter
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.commands.refusals import Refused
from raftwood.zeppelin.commands.registry import SINGLE_KEY
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.turn import (
    KEY_TOO_LARGE,
    OUTCOME_BYTES_MAX,
    Turn,
)
from raftwood.zeppelin.node.held_answers import Wait
from raftwood.zeppelin.node.seams import KEY_BYTES_MAX, WRITE_BYTES, Write
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import OK, integer
from raftwood.zeppelin.slots import SLOTS, are_in_slot, slot_of

ANSWERS_BYTES_MAX: Final = 4 << 20
"""Of one turn: above it the next requests wait."""
PLAIN: Final = frozenset((*SINGLE_KEY, b"MGET", b"MSET"))

_SLOT_MASK: Final = SLOTS - 1
_HEADS: Final = tuple(b"$%d\r\n" % length for length in range(1024))
_BREAK: Final = b"\r\n"
_COUNTER_BYTES_MAX: Final = 18
_ZERO: Final = ord("0")


def answer_plain(
    session: Session,
    requests: list[list[bytes]],
    begin: int,
    end: int,
    answers: list[bytes],
    waits: list[Wait],
) -> int:
    """Answer requests from a place up to another; the place of the first one that is not plain.

    `waits` gets, for each answer that has to wait, its place, whom for and which sequence.
    """
    copies = session.copies
    count = len(copies)
    if not count or session.transaction is not None or session.origin is not None:
        return begin
    now_ms, null, written = session.now_ms, session.dialect.null, session.written
    may_write = session.user is not None and session.user.may_write
    answers_bytes, place = 0, begin
    try:
        for place in range(begin, end):
            arguments = requests[place]
            words, name = len(arguments), arguments[0]
            if words < 2 or answers_bytes > ANSWERS_BYTES_MAX:
                return place
            key = arguments[1]
            slot = slot_of(key) if b"{" in key else crc_hqx(key, 0) & _SLOT_MASK
            copy = copies[slot * count >> 14]
            if copy is None or not copy.is_serving:
                return place
            if name == b"GET" and words == 2:
                found = copy.recent.get(key)
                if found is None or found.expires_ms:
                    data = _data_of(copy, key, now_ms)
                else:
                    data = found.data
                last_writes = copy.last_writes
                if last_writes is not None and copy.is_undone(seen := last_writes.of(key)):
                    waits.append((len(answers), copy.acks, seen, True))
                if data is None:
                    answers.append(null)
                else:
                    answers_bytes += len(data)
                    answers.append(b"$%d\r\n%b\r\n" % (len(data), data))
                continue
            if name == b"MGET":
                answer = _values(copy, slot, arguments, now_ms, null)
                if not answer:
                    return place
                if copy.is_undone(seen := copy.seen(arguments[1:])):
                    waits.append((len(answers), copy.acks, seen, True))
                answers_bytes += len(answer)
                answers.append(answer)
                continue
            sequence = 0
            answer = OK
            if name == b"SET" and words == 3 and may_write:
                data = arguments[2]
                size = len(key) + len(data) + WRITE_BYTES
                sequence = copy.write({key: Write(key, data)}, size)
            elif name == b"MSET" and may_write:
                sequence = _put_all(copy, slot, arguments)
                if not sequence:
                    return place
            elif (
                name == b"INCR" and words == 2 and may_write and (number := _next_number(copy, key))
            ):
                data = b"%d" % number
                size = len(key) + len(data) + WRITE_BYTES
                sequence = copy.write({key: Write(key, data)}, size)
                answer = integer(number)
            else:
                command = SINGLE_KEY.get(name)
                if command is None or command.on_keys is None or len(key) > KEY_BYTES_MAX:
                    return place
                if command.is_write and not may_write:
                    return place
                command.check(arguments)
                turn = Turn(copy, session.dialect, now_ms=now_ms)
                answer = command.on_keys(turn, arguments)
                answers_bytes += len(answer)
                if turn.writes:
                    sequence = copy.commit(turn.outcome())
                elif copy.is_undone(turn.seen):
                    waits.append((len(answers), copy.acks, turn.seen, True))
            if sequence:
                written[copy] = sequence
                if not copy.acks.is_immediate:
                    waits.append((len(answers), copy.acks, sequence, False))
            answers.append(answer)
    except RaftwoodError:
        # What to answer is said in one place; nothing was done.
        return place
    return end


def _data_of(copy: PartitionCopy, key: bytes, now_ms: int) -> bytes | None:
    if len(key) > KEY_BYTES_MAX:
        raise Refused(KEY_TOO_LARGE)
    value = copy.store.get(key, now_ms=now_ms)
    return None if value is None else value.data


def _values(
    copy: PartitionCopy, slot: int, arguments: list[bytes], now_ms: int, null: bytes
) -> bytes:
    """Those of keys in one slot, where all are in memory and short; else nothing."""
    keys = arguments[1:]
    if len(keys) < 2 or not are_in_slot(keys, slot):
        return b""
    parts = [b"*%d\r\n" % len(keys)]
    try:
        for found in itemgetter(*keys)(copy.recent):
            data = found.data
            if data is None or 0 < found.expires_ms <= now_ms:
                parts.append(null)
            else:
                parts += (_HEADS[len(data)], data, _BREAK)
    except LookupError:
        return b""
    return b"".join(parts)


def _put_all(copy: PartitionCopy, slot: int, arguments: list[bytes]) -> int:
    """The sequence of a record with all pairs; 0 where that is not plain."""
    keys, values = arguments[1::2], arguments[2::2]
    size = sum(map(len, arguments)) + WRITE_BYTES * len(keys)
    if (
        len(keys) != len(values)
        or size > OUTCOME_BYTES_MAX
        or max(map(len, keys)) > KEY_BYTES_MAX
        or not are_in_slot(keys, slot)
    ):
        return 0
    return copy.write(dict(zip(keys, map(Write, keys, values), strict=True)), size)


def _next_number(copy: PartitionCopy, key: bytes) -> int:
    """One more than a counter that is in memory, above 0 and far from its end; else 0."""
    found = copy.recent.get(key)
    if found is None or found.expires_ms or not found.data:
        return 0
    data = found.data
    if len(data) > _COUNTER_BYTES_MAX or data[0] == _ZERO or not data.isdigit():
        return 0
    return int(data) + 1
