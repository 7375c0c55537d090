"""Commands on all keys of a table that this node is the master of.

A node that is the master of none answers with what it has as a slave, to those who said READONLY.
Whoever wants the whole table asks each master, as clients of Redis Cluster do by themselves. What
goes through many keys does so a slice at a time, and others have their turns between.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

import msgspec

from raftwood.zeppelin.commands.cursors import Place
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.patterns import Pattern
from raftwood.zeppelin.commands.refusals import CLUSTER_DOWN, SYNTAX, Refused
from raftwood.zeppelin.commands.session import Frozen, Session
from raftwood.zeppelin.commands.table import Answer, serving
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import OK, array, bulks, integer, text
from raftwood.zeppelin.slots import place_of_slot

SLICE_KEYS: Final = 512
SCAN_COUNT_MAX: Final = 4_096
KEYS_MAX: Final = 100_000
_COUNTS: Final = 3
"""So often partitions are counted anew, where who has them changes meanwhile."""


class _ScanOptions(msgspec.Struct):
    pattern: Pattern
    count: int = 10
    is_of_strings: bool = True


def _scan_options(words: list[bytes]) -> _ScanOptions:
    options = _ScanOptions(Pattern(b"*"))
    if len(words) % 2:
        raise Refused(SYNTAX)
    for word, value in zip(words[::2], words[1::2], strict=True):
        match word.upper():
            case b"MATCH":
                options.pattern = Pattern(value)
            case b"COUNT":
                options.count = min(as_integer(value), SCAN_COUNT_MAX)
                if options.count < 1:
                    raise Refused(SYNTAX)
            case b"TYPE":
                options.is_of_strings = value.lower() == b"string"
            case _:
                raise Refused(SYNTAX)
    return options


class Part(msgspec.Struct, frozen=True):
    """A partition, and its slots."""

    slots: range
    copy: PartitionCopy | None
    """None: this node does not tell its keys."""


def readable(session: Session) -> list[Part]:
    """All partitions in the order of their slots, with the copies whose keys are told.

    Who asks all masters wants each key once, also where it said READONLY to all of them. A master
    that may not serve now refuses: whoever gathers what all of them tell would miss its keys.
    """
    assert session.user is not None
    copies = session.copies
    table = session.topology.tables.get(session.user.table)
    if table is None or not copies:
        return []
    is_master = any(copy is not None and copy.is_leading for copy in copies)
    is_behind = session.is_reading_behind and not is_master
    parts: list[Part] = []
    for number in dict.fromkeys(table.places):
        slots = table.slots_of(number)
        copy = copies[place_of_slot(slots.start, len(copies))]
        if copy is not None and (copy.is_serving or (is_behind and copy.may_read_behind)):
            parts.append(Part(slots, copy))
        elif copy is not None and copy.is_leading:
            raise Frozen
        elif table.partitions[number].master == session.host.view.node_id:
            if session.host.view.has_lease:
                raise Frozen(CLUSTER_DOWN)
            raise Refused(CLUSTER_DOWN)
        else:
            parts.append(Part(slots, None))
    return parts


def scan(session: Session, arguments: list[bytes]) -> bytes:
    assert session.user is not None
    cursors, table = session.host.cursors, session.user.table
    place = cursors.find(as_integer(arguments[1], "ERR invalid cursor"), table=table)
    options = _scan_options(arguments[2:])
    keys: list[bytes] = []
    left, cursor = options.count, 0
    for part in readable(session):
        if part.slots.stop <= place.slot or part.copy is None:
            continue
        # What was split off is told from its beginning.
        after = place.after if place.slot in part.slots else None
        session.expect_read(part.copy, part.copy.seen_of_all())
        seen = _keys_of(session, part.copy, after, left)
        keys += filter(options.pattern.matches, seen)
        left -= len(seen)
        if not left:
            cursor = cursors.add(Place(table, part.slots.start, seen[-1]))
            break
    return array([text(str(cursor)), bulks(keys if options.is_of_strings else [])])


async def _slices(session: Session) -> AsyncIterator[list[bytes]]:
    """All keys that are here, some at a time; asks each time anew whether they may be told."""
    slot, after = 0, None
    is_over = False
    told: dict[PartitionCopy, None] = {}
    while not is_over:
        session.begin_turn()
        is_over = True
        for part in readable(session):
            if part.slots.stop <= slot or part.copy is None:
                continue
            keys = _keys_of(session, part.copy, after if slot in part.slots else None, SLICE_KEYS)
            yield keys
            told[part.copy] = None
            if len(keys) == SLICE_KEYS:
                slot, after = part.slots.start, keys[-1]
            else:
                slot, after = part.slots.stop, None
            is_over = False
            break
        await asyncio.sleep(0)
    for copy in told:
        session.expect_read(copy, copy.seen_of_all())


def _keys_of(session: Session, copy: PartitionCopy, after: bytes | None, count: int) -> list[bytes]:
    found = copy.store.scan(after=after, now_ms=session.now_ms)
    return [key for key, _ in islice(found, count)]


async def _keys(session: Session, pattern: Pattern) -> bytes:
    found: list[bytes] = []
    async for keys in _slices(session):
        found += filter(pattern.matches, keys)
        if len(found) > KEYS_MAX:
            raise Refused(f"ERR more than {KEYS_MAX} keys match: use SCAN")
    return bulks(found)


async def _count(session: Session) -> bytes:
    for _ in range(_COUNTS):
        parts = readable(session)
        counted = {part.copy: await part.copy.store.count() for part in parts if part.copy}
        session.begin_turn()
        if readable(session) == parts:
            break
    else:
        raise Frozen  # it changes hands, part by part
    known = [count for count in counted.values() if count is not None]
    if len(known) == len(counted):
        for copy in counted:
            session.expect_read(copy, copy.seen_of_all())
        return integer(sum(known))
    count = 0
    async for keys in _slices(session):
        count += len(keys)
    return integer(count)


def keys(session: Session, arguments: list[bytes]) -> Answer:
    readable(session)  # what is being handed over is waited for before anything is gathered
    return _keys(session, Pattern(arguments[1]))


def dbsize(session: Session, _: list[bytes]) -> Answer:
    readable(session)
    return _count(session)


def randomkey(session: Session, _: list[bytes]) -> bytes:
    """Some key: of a partition that is chosen by how many it has, else of the others in turn."""
    random = session.host.environment.random
    copies = [part.copy for part in readable(session) if part.copy is not None]
    if not copies:
        return session.dialect.null
    weights = [1 + copy.store.about_keys for copy in copies]
    (begin,) = random.choices(range(len(copies)), weights)
    for copy in (*copies[begin:], *copies[:begin]):
        session.expect_read(copy, copy.seen_of_all())
        key = copy.store.random_key(random, now_ms=session.now_ms)
        if key is not None:
            return session.dialect.maybe(key)
    return session.dialect.null


def flush(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) > 2 or (
        len(arguments) == 2 and arguments[1].upper() not in (b"ASYNC", b"SYNC")
    ):
        raise Refused(SYNTAX)
    for part in readable(session):
        copy = part.copy
        if copy is not None and copy.is_serving and session.sequence_done(copy) is None:
            session.commit(copy, (), flushes=True)
    return OK


COMMANDS: Final = (
    serving("scan", -2, scan, "Some of the keys", group="generic", flags=("readonly",)),
    serving("keys", 2, keys, "The keys that match", group="generic", flags=("readonly",)),
    serving("dbsize", 1, dbsize, "How many keys there are", flags=("readonly",)),
    serving("randomkey", 1, randomkey, "Some key", group="generic", flags=("readonly",)),
    serving("flushdb", -1, flush, "Deletes all keys", flags=("write",), is_write=True),
    serving("flushall", -1, flush, "Deletes all keys", flags=("write",), is_write=True),
)
