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

SLICE_KEYS: Final = 512
SCAN_COUNT_MAX: Final = 4_096
KEYS_MAX: Final = 100_000


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


def _is_led(session: Session, partition: int) -> bool:
    """Whether this node is the master of a partition, may it serve now or not."""
    assert session.user is not None
    table = session.topology.tables.get(session.user.table)
    return table is not None and table.partitions[partition].master == session.host.view.node_id


def _readable(session: Session) -> list[PartitionCopy | None]:
    """By partition, the copies whose keys are told.

    Who asks all masters wants each key once, also where it said READONLY to all of them. A master
    that may not serve now refuses: whoever gathers what all of them tell would miss its keys.
    """
    copies = session.copies
    is_master = any(copy is not None and copy.is_leading for copy in copies)
    is_behind = session.is_reading_behind and not is_master
    readable: list[PartitionCopy | None] = []
    for partition, copy in enumerate(copies):
        if copy is not None and (copy.is_serving or (is_behind and copy.may_read_behind)):
            readable.append(copy)
        elif copy is not None and copy.is_leading:
            raise Frozen
        elif _is_led(session, partition):
            raise Refused(CLUSTER_DOWN)
        else:
            readable.append(None)
    return readable


def scan(session: Session, arguments: list[bytes]) -> bytes:
    assert session.user is not None
    cursors, table = session.host.cursors, session.user.table
    place = cursors.find(as_integer(arguments[1], "ERR invalid cursor"), table=table)
    options = _scan_options(arguments[2:])
    keys: list[bytes] = []
    left, partition, after = options.count, place.partition, place.after
    copies = _readable(session)
    while left and partition < len(copies):
        copy = copies[partition]
        seen: list[bytes] = []
        if copy is not None:
            found = copy.store.scan(after=after, now_ms=session.now_ms)
            seen = [key for key, _ in islice(found, left)]
            keys += filter(options.pattern.matches, seen)
        left -= len(seen)
        if left:
            partition, after = partition + 1, None
        else:
            after = seen[-1]
    is_over = partition >= len(copies)
    cursor = 0 if is_over else cursors.add(Place(table, partition, after))
    return array([text(str(cursor)), bulks(keys if options.is_of_strings else [])])


async def _slices(session: Session) -> AsyncIterator[list[bytes]]:
    """All keys that are here, some at a time; asks each time anew whether they may be told."""
    for partition in range(len(session.copies)):
        after: bytes | None = None
        while partition < len(session.copies):
            copy = _readable(session)[partition]
            if copy is None:
                break
            found = copy.store.scan(after=after, now_ms=session.now_ms)
            keys = [key for key, _ in islice(found, SLICE_KEYS)]
            yield keys
            if len(keys) < SLICE_KEYS:
                break
            after = keys[-1]
            await asyncio.sleep(0)
            session.begin_turn()


async def _keys(session: Session, pattern: Pattern) -> bytes:
    found: list[bytes] = []
    async for keys in _slices(session):
        found += filter(pattern.matches, keys)
        if len(found) > KEYS_MAX:
            raise Refused(f"ERR more than {KEYS_MAX} keys match: use SCAN")
    return bulks(found)


async def _count(session: Session) -> bytes:
    count = 0
    async for keys in _slices(session):
        count += len(keys)
    return integer(count)


def keys(session: Session, arguments: list[bytes]) -> Answer:
    _readable(session)  # what is being handed over is waited for before anything is gathered
    return _keys(session, Pattern(arguments[1]))


def dbsize(session: Session, _: list[bytes]) -> Answer:
    _readable(session)
    return _count(session)


def randomkey(session: Session, _: list[bytes]) -> bytes:
    """Some key: each partition first where chance says, then in turn."""
    random = session.host.environment.random
    copies = [copy for copy in _readable(session) if copy is not None]
    begin = random.randrange(len(copies)) if copies else 0
    for copy in (*copies[begin:], *copies[:begin]):
        for after in (random.randbytes(8), None):
            for key, _value in copy.store.scan(after=after, now_ms=session.now_ms):
                return session.dialect.maybe(key)
    return session.dialect.null


def flush(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) > 2 or (
        len(arguments) == 2 and arguments[1].upper() not in (b"ASYNC", b"SYNC")
    ):
        raise Refused(SYNTAX)
    for copy in _readable(session):
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
