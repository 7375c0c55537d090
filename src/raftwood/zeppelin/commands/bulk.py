"""BULK: many keys in one request; and FENCE, which lets only one producer apply a stream.

    FENCE producer                          the largest number that a partition here knows; or -1
    FENCE producer number                   from now on smaller ones are refused, in all partitions
    BULK APPLY producer number (key SET|DEL value expires_ms)…
    BULK CLEAR producer number first last   no keys in these slots; how many partitions have more

A producer's numbers rise. A partition that has one refuses smaller ones: so a process that has put
a larger one into all partitions is the only writer, however late the requests of others come. A
repeated number was done already. Times and writes are absolute.
"""

from collections.abc import Sequence
from typing import Final, Self

from raftwood.zeppelin.commands.command import (
    EXPIRY_MS_MAX,
    KEY_TOO_LARGE,
    SYNTAX,
    Answer,
    RedisCommand,
    RedisError,
    Turn,
    invalid_expire,
    serving,
    wrong_number,
)
from raftwood.zeppelin.commands.keys import readable
from raftwood.zeppelin.commands.numbers import INTEGER_MAX, INTEGER_MIN, as_integer
from raftwood.zeppelin.commands.session import KvSession, PartitionFrozen
from raftwood.zeppelin.commands.transactions import PRODUCER_BYTES_MAX, writes_of
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import KEY_BYTES_MAX, Value
from raftwood.zeppelin.resp import OK, array, integer
from raftwood.zeppelin.slots import SLOTS, place_of_slot, slot_of

NO_NUMBER: Final = -1


def fence(session: KvSession, arguments: list[bytes]) -> bytes:
    copies = [
        part.copy for part in readable(session) if part.copy is not None and part.copy.is_serving
    ]
    if len(arguments) == 2:
        producer = _producer(arguments[1])
        for copy in copies:
            session.expect_read(copy, copy.seen_of_all())
        known = [copy.store.last_number(producer) for copy in copies]
        return integer(max((each for each in known if each is not None), default=NO_NUMBER))
    if len(arguments) != 3:
        raise wrong_number("fence")
    session.check_may_write("fence")
    with ProducerRequest(session, arguments[1], arguments[2]) as named:
        for copy in named.to_do(copies):
            session.commit(copy, ())
    return OK


def clear(session: KvSession, arguments: list[bytes]) -> bytes:
    first, last = as_integer(arguments[4]), as_integer(arguments[5])
    if not 0 <= first <= last < SLOTS:
        raise RedisError(SYNTAX)
    whole: list[PartitionCopy] = []
    partial = 0
    for part in readable(session):
        slots, copy = part.slots, part.copy
        if copy is None or not copy.is_serving or slots[0] > last or slots[-1] < first:
            continue
        if first <= slots[0] and slots[-1] <= last:
            whole.append(copy)
        else:
            partial += 1
    with ProducerRequest(session, arguments[2], arguments[3]) as named:
        for copy in named.to_do(whole):
            session.commit(copy, (), flushes=True)
    return integer(partial)


class ProducerRequest:
    """A request under a producer's number, refused if a larger one came before."""

    def __init__(self, session: KvSession, producer: bytes, number: bytes) -> None:
        self._session = session
        self.origin = (_producer(producer), as_integer(number))

    def __enter__(self) -> Self:
        self._session.origin = self.origin
        return self

    def __exit__(self, *_: object) -> None:
        self._session.origin = None

    def to_do(self, copies: list[PartitionCopy]) -> list[PartitionCopy]:
        """Returns the copies that have not done it yet; the answer also waits for the others."""
        producer, number = self.origin
        for copy in copies:
            known = copy.store.last_number(producer)
            if known is not None and known > number:
                raise RedisError(f"FENCED {known} came before {number}: another one writes now")
        return [copy for copy in copies if self._session.sequence_done(copy) is None]


def put_changes(turn: Turn, changes: list[bytes], places: list[int]) -> None:
    """Makes the changes of a BULK APPLY request at these places."""
    for place in places:
        key, verb, value, end = changes[4 * place : 4 * place + 4]
        match verb:
            case b"SET":
                expires_ms = as_integer(end)
                if not 0 <= expires_ms <= EXPIRY_MS_MAX:
                    raise invalid_expire("bulk|apply")
                turn.put(key, value, expires_ms)
            case b"DEL":
                turn.delete(key)
            case _:
                raise RedisError(SYNTAX)


def _producer(word: bytes) -> bytes:
    if not 1 <= len(word) <= PRODUCER_BYTES_MAX:
        raise RedisError(f"ERR a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes")
    return word


# BULK: many keys in one request, of all slots that this node leads.
#
# For our own client's batches: MGET and MSET take keys of one slot only. A request writes one
# record in each partition that it touches, and each partition knows the request by its ONCE name.
# So a request that is sent again, even split among other nodes, runs only where it was not done.

BULK_KEYS_MAX: Final = 10_000
BULK_ANSWER_BYTES_MAX: Final = 32 << 20


def _by_copy(
    session: KvSession, keys: Sequence[bytes], *, is_write: bool
) -> list[tuple[PartitionCopy, list[int]]]:
    """Groups the places of keys by their copy; refuses the whole request if one key is not here."""
    if not keys or len(keys) > BULK_KEYS_MAX:
        raise RedisError(f"ERR BULK takes 1 to {BULK_KEYS_MAX} keys")
    if max(map(len, keys)) > KEY_BYTES_MAX:
        raise RedisError(KEY_TOO_LARGE)
    copies = session.copies
    count = len(copies)
    slots = list(map(slot_of, keys))
    found: dict[object, list[int]] = {}
    for place, slot in enumerate(slots):
        # A partition gets one record, even if it has two neighbouring places.
        of_slot = place_of_slot(slot, count)
        copy = copies[of_slot] if copies else None
        found.setdefault(of_slot if copy is None else copy, []).append(place)
    return [(session.copy_of(slots[mine[0]], is_write=is_write), mine) for mine in found.values()]


def _turns(
    session: KvSession, parts: list[tuple[PartitionCopy, list[int]]]
) -> list[tuple[PartitionCopy, list[int], Turn]]:
    """Returns a turn for each partition that has not done the request yet."""
    return [
        (copy, places, Turn(copy, session.dialect, now_ms=session.now_ms))
        for copy, places in parts
        if session.sequence_done(copy) is None
    ]


def _expect_reads(session: KvSession, turns: list[tuple[PartitionCopy, list[int], Turn]]) -> None:
    for copy, _, turn in turns:
        session.expect_read(copy, turn.seen)


def _commit(session: KvSession, turns: list[tuple[PartitionCopy, list[int], Turn]]) -> None:
    # Compute all outcomes before the first commit: one that is too large refuses all.
    outcomes = [(copy, turn.outcome()) for copy, _, turn in turns]
    is_begun = False
    for copy, writes in outcomes:
        if writes:
            try:
                session.commit(copy, writes)
            except PartitionFrozen as frozen:
                if is_begun and session.origin is None:
                    # A repetition of the whole would do some of it twice.
                    raise RedisError(frozen.refusal) from frozen
                raise
            is_begun = True


def _triples(
    arguments: list[bytes], name: str, now_ms: int
) -> tuple[list[bytes], list[bytes], list[int]]:
    """Parses keys, operations, and expiry times; 0: none given."""
    if len(arguments) % 3 != 2:
        raise wrong_number(name)
    ends = []
    for word in arguments[4::3]:
        span_ms = 0 if word == b"0" else as_integer(word)
        if span_ms < 0 or span_ms + now_ms > EXPIRY_MS_MAX:
            raise invalid_expire(name)
        ends.append(span_ms and span_ms + now_ms)
    return arguments[2::3], arguments[3::3], ends


def bulk_set(session: KvSession, arguments: list[bytes]) -> bytes:
    """`BULK SET key value ttl_ms …`; 0: the key does not expire."""
    keys, values, ends = _triples(arguments, "bulk|set", session.now_ms)
    turns = _turns(session, _by_copy(session, keys, is_write=True))
    for _, places, turn in turns:
        for place in places:
            turn.put(keys[place], values[place], ends[place])
    _commit(session, turns)
    return OK


def bulk_incr(session: KvSession, arguments: list[bytes]) -> bytes:
    """`BULK INCR key amount ttl_ms …`; 0: the expiry stays as it is. All or nothing."""
    keys, amounts, ends = _triples(arguments, "bulk|incr", session.now_ms)
    turns = _turns(session, _by_copy(session, keys, is_write=True))
    try:
        for _, places, turn in turns:
            for place in places:
                value = turn.get(keys[place])
                number = 0 if value is None else as_integer(value.data)
                number += as_integer(amounts[place])
                if not INTEGER_MIN <= number <= INTEGER_MAX:
                    raise RedisError("ERR increment or decrement would overflow")
                kept_ms = 0 if value is None else value.expires_ms
                turn.put(keys[place], b"%d" % number, ends[place] or kept_ms)
    finally:
        # A refusal depends on the reads as well.
        _expect_reads(session, turns)
    _commit(session, turns)
    return OK


def bulk_apply(session: KvSession, arguments: list[bytes]) -> bytes:
    """`BULK APPLY producer number key SET|DEL value expires_ms …`."""
    changes = arguments[4:]
    if len(changes) % 4:
        raise wrong_number("bulk|apply")
    parts = _by_copy(session, changes[::4], is_write=True)
    with ProducerRequest(session, arguments[2], arguments[3]) as named:
        to_do = named.to_do([copy for copy, _ in parts])
        turns = []
        for copy, places in parts:
            if copy in to_do:
                turn = Turn(copy, session.dialect, now_ms=session.now_ms)
                put_changes(turn, changes, places)
                turns.append((copy, places, turn))
        _commit(session, turns)
    return OK


def bulk_del(session: KvSession, arguments: list[bytes]) -> Answer:
    """`BULK DEL key …`: returns how many existed."""
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


def bulk_get(session: KvSession, arguments: list[bytes]) -> Answer:
    """`BULK GET key …`: returns their values in order."""
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


def _values(session: KvSession, values: list[Value | None]) -> bytes:
    if sum(len(value.data) for value in values if value is not None) > BULK_ANSWER_BYTES_MAX:
        raise RedisError(
            f"TOOLARGE the values are above {BULK_ANSWER_BYTES_MAX} bytes: ask for fewer"
        )
    maybe = session.dialect.maybe
    return array([maybe(None if value is None else value.data) for value in values])


COMMANDS: Final = (
    serving("fence", -2, fence, "Who writes from now on", group="generic"),
    RedisCommand(
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
