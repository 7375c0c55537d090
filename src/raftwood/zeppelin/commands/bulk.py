"""BULK: many keys in one request, of whatever slots this node is the master of.

Our own client's way in and out for batches: MGET and MSET take keys of one slot alone. What a
request writes is one record in each partition that it touches, and each knows it by its ONCE name,
so that a request which is sent again, split among other nodes by then, is done where it was not.
"""

from collections.abc import Sequence
from typing import Final

from raftwood.zeppelin.commands.apply import Named, clear, fence, put_changes
from raftwood.zeppelin.commands.numbers import INTEGER_MAX, INTEGER_MIN, as_integer
from raftwood.zeppelin.commands.once import writes_of
from raftwood.zeppelin.commands.refusals import Refused, invalid_expire, wrong_number
from raftwood.zeppelin.commands.session import Frozen, Session
from raftwood.zeppelin.commands.table import Answer, Command, serving
from raftwood.zeppelin.commands.turn import EXPIRY_MS_MAX, KEY_TOO_LARGE, Turn
from raftwood.zeppelin.node.seams import KEY_BYTES_MAX, Value
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import OK, array, integer
from raftwood.zeppelin.slots import place_of_slot, slot_of

BULK_KEYS_MAX: Final = 10_000
BULK_ANSWER_BYTES_MAX: Final = 32 << 20


def _by_copy(
    session: Session, keys: Sequence[bytes], *, is_write: bool
) -> list[tuple[PartitionCopy, list[int]]]:
    """The places of keys by the copy that has them; refused as a whole where one is not here."""
    if not keys or len(keys) > BULK_KEYS_MAX:
        raise Refused(f"ERR BULK takes 1 to {BULK_KEYS_MAX} keys")
    if max(map(len, keys)) > KEY_BYTES_MAX:
        raise Refused(KEY_TOO_LARGE)
    copies = session.copies
    count = len(copies)
    slots = list(map(slot_of, keys))
    found: dict[object, list[int]] = {}
    for place, slot in enumerate(slots):
        # What one partition has is one record, also where that has two neighbouring ranges.
        of_slot = place_of_slot(slot, count)
        copy = copies[of_slot] if copies else None
        found.setdefault(of_slot if copy is None else copy, []).append(place)
    return [(session.copy_of(slots[mine[0]], is_write=is_write), mine) for mine in found.values()]


def _turns(
    session: Session, parts: list[tuple[PartitionCopy, list[int]]]
) -> list[tuple[PartitionCopy, list[int], Turn]]:
    """One for each partition that has not done it yet."""
    return [
        (copy, places, Turn(copy, session.dialect, now_ms=session.now_ms))
        for copy, places in parts
        if session.sequence_done(copy) is None
    ]


def _expect_reads(session: Session, turns: list[tuple[PartitionCopy, list[int], Turn]]) -> None:
    for copy, _, turn in turns:
        session.expect_read(copy, turn.seen)


def _commit(session: Session, turns: list[tuple[PartitionCopy, list[int], Turn]]) -> None:
    # All outcomes are there before the first is committed: one that is too large refuses all.
    outcomes = [(copy, turn.outcome()) for copy, _, turn in turns]
    is_begun = False
    for copy, writes in outcomes:
        if writes:
            try:
                session.commit(copy, writes)
            except Frozen as frozen:
                if is_begun and session.origin is None:
                    # Done again as a whole, some of it would be done twice.
                    raise Refused(frozen.refusal) from frozen
                raise
            is_begun = True


def _triples(
    arguments: list[bytes], name: str, now_ms: int
) -> tuple[list[bytes], list[bytes], list[int]]:
    """Keys, what is to be done with each, and when they end; 0 where nothing was said of that."""
    if len(arguments) % 3 != 2:
        raise wrong_number(name)
    ends = []
    for word in arguments[4::3]:
        span_ms = 0 if word == b"0" else as_integer(word)
        if span_ms < 0 or span_ms + now_ms > EXPIRY_MS_MAX:
            raise invalid_expire(name)
        ends.append(span_ms and span_ms + now_ms)
    return arguments[2::3], arguments[3::3], ends


def bulk_set(session: Session, arguments: list[bytes]) -> bytes:
    """`BULK SET key value ttl_ms …`; 0: it does not end."""
    keys, values, ends = _triples(arguments, "bulk|set", session.now_ms)
    turns = _turns(session, _by_copy(session, keys, is_write=True))
    for _, places, turn in turns:
        for place in places:
            turn.put(keys[place], values[place], ends[place])
    _commit(session, turns)
    return OK


def bulk_incr(session: Session, arguments: list[bytes]) -> bytes:
    """`BULK INCR key amount ttl_ms …`; 0: when it ends stays as it is. All of it or nothing."""
    keys, amounts, ends = _triples(arguments, "bulk|incr", session.now_ms)
    turns = _turns(session, _by_copy(session, keys, is_write=True))
    try:
        for _, places, turn in turns:
            for place in places:
                value = turn.get(keys[place])
                number = 0 if value is None else as_integer(value.data)
                number += as_integer(amounts[place])
                if not INTEGER_MIN <= number <= INTEGER_MAX:
                    raise Refused("ERR increment or decrement would overflow")
                kept_ms = 0 if value is None else value.expires_ms
                turn.put(keys[place], b"%d" % number, ends[place] or kept_ms)
    finally:
        # A refusal tells what was read as well.
        _expect_reads(session, turns)
    _commit(session, turns)
    return OK


def bulk_apply(session: Session, arguments: list[bytes]) -> bytes:
    """`BULK APPLY producer number key SET|DEL value expires_ms …`; see `apply`."""
    changes = arguments[4:]
    if len(changes) % 4:
        raise wrong_number("bulk|apply")
    parts = _by_copy(session, changes[::4], is_write=True)
    with Named(session, arguments[2], arguments[3]) as named:
        to_do = named.to_do([copy for copy, _ in parts])
        turns = []
        for copy, places in parts:
            if copy in to_do:
                turn = Turn(copy, session.dialect, now_ms=session.now_ms)
                put_changes(turn, changes, places)
                turns.append((copy, places, turn))
        _commit(session, turns)
    return OK


def bulk_del(session: Session, arguments: list[bytes]) -> Answer:
    """`BULK DEL key …`: how many there were."""
    keys = arguments[2:]
    parts = _by_copy(session, keys, is_write=True)
    done = [(copy, session.sequence_done(copy)) for copy, _ in parts]
    turns = _turns(session, parts)
    count = sum(turn.delete(keys[place]) for _, places, turn in turns for place in places)
    _expect_reads(session, turns)
    _commit(session, turns)
    before = [(copy, sequence) for copy, sequence in done if sequence is not None]
    if not before:
        return integer(count)

    async def run() -> bytes:
        total = count
        for copy, sequence in before:
            total += len(await writes_of(copy.store, sequence))
        return integer(total)

    return run()


def bulk_get(session: Session, arguments: list[bytes]) -> Answer:
    """`BULK GET key …`: their values in order."""
    keys = arguments[2:]
    values: list[Value | None] = [None] * len(keys)
    cold: list[tuple[PartitionCopy, list[int], list[bytes]]] = []

    def keep(places: list[int], found: Sequence[Value | None]) -> None:
        for place, value in zip(places, found, strict=True):
            values[place] = value

    for copy, places in _by_copy(session, keys, is_write=False):
        asked = [keys[place] for place in places]
        session.expect_read(copy, copy.seen(asked))
        found = copy.store.multi_get_cached(asked, now_ms=session.now_ms)
        if found is None:
            cold.append((copy, places, asked))
        else:
            keep(places, found)
    if not cold:
        return _values(session, values)

    async def run() -> bytes:
        for copy, places, asked in cold:
            keep(places, await copy.store.multi_get(asked, now_ms=session.now_ms))
        return _values(session, values)

    return run()


def _values(session: Session, values: list[Value | None]) -> bytes:
    if sum(len(value.data) for value in values if value is not None) > BULK_ANSWER_BYTES_MAX:
        raise Refused(f"TOOLARGE the values are above {BULK_ANSWER_BYTES_MAX} bytes: ask for fewer")
    maybe = session.dialect.maybe
    return array([maybe(None if value is None else value.data) for value in values])


COMMANDS: Final = (
    serving("fence", -2, fence, "Who writes from now on", group="generic"),
    Command(
        name="bulk",
        arity=-3,
        flags=("write",),
        group="generic",
        summary="Many keys of whatever slots that are here",
        subcommands={
            b"GET": serving("bulk|get", -3, bulk_get, "Values of keys"),
            b"SET": serving("bulk|set", -5, bulk_set, "Gives keys values", is_write=True),
            b"INCR": serving("bulk|incr", -5, bulk_incr, "Adds numbers", is_write=True),
            b"APPLY": serving("bulk|apply", -8, bulk_apply, "Changes of a stream", is_write=True),
            b"CLEAR": serving("bulk|clear", 6, clear, "Deletes slots", is_write=True),
            b"DEL": serving("bulk|del", -3, bulk_del, "Deletes keys", is_write=True),
        },
    ),
)
