"""Commands on keys of any value: of one slot, of a tag, of a whole table."""

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import islice
from typing import Final

import msgspec

from raftwood.zeppelin.commands.command import (
    CLUSTER_DOWN,
    SYNTAX,
    Answer,
    RedisCommand,
    RedisError,
    Turn,
    reading,
    serving,
    unknown_subcommand,
    writing,
    wrong_number,
)
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import KvSession, PartitionFrozen, ScanPlace
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp import OK, array, bulk, bulks, integer, simple, text
from raftwood.zeppelin.slots import place_of_slot

PATTERN_BYTES_MAX: Final = 4_096

_PIECE: Final = re.compile(
    rb"(?P<star>\*+)|(?P<any>\?)|\[(?P<negated>\^?)(?P<set>(?:\\.|[^\]\\])*)\]?|\\(?P<escaped>.)"
    rb"|(?P<plain>.)",
    re.DOTALL,
)
_OF_SET: Final = re.compile(rb"(\\.|[^\\])-(\\.|[^\\])|(\\.|.)", re.DOTALL)


class Pattern:
    """A glob pattern. It finds each piece between stars as early as possible: no match takes
    long.
    """

    __slots__ = ("_is_all", "_last_bytes", "_pieces")

    def __init__(self, pattern: bytes) -> None:
        if len(pattern) > PATTERN_BYTES_MAX:
            raise RedisError(f"ERR pattern is above {PATTERN_BYTES_MAX} bytes")
        pieces: list[list[bytes]] = [[]]
        for found in _PIECE.finditer(pattern):
            if found["star"]:
                pieces.append([])
            else:
                pieces[-1].append(_expression(found))
        self._is_all = pieces == [[], []]
        self._last_bytes = len(pieces[-1])
        self._pieces = [re.compile(b"".join(piece), re.DOTALL) for piece in pieces]

    def matches(self, key: bytes) -> bool:
        if self._is_all:
            return True
        first, *others = self._pieces
        if not others:
            return first.fullmatch(key) is not None
        found = first.match(key)
        for piece in others[:-1]:
            if found is None:
                return False
            found = piece.search(key, found.end())
        # Each piece matches a fixed number of bytes.
        at = len(key) - self._last_bytes
        return found is not None and at >= found.end() and others[-1].fullmatch(key, at) is not None


def _expression(found: re.Match[bytes]) -> bytes:
    """Returns one character of a pattern as a regular expression."""
    if found["any"]:
        return b"."
    if found["set"] is None:
        return re.escape(found["escaped"] or found["plain"])
    characters = bytearray()
    for begin, end, single in _OF_SET.findall(found["set"]):
        if single:
            characters += single[-1:]
        else:
            low, high = sorted((begin[-1], end[-1]))
            characters += bytes(range(low, high + 1))
    if not characters:
        return b"." if found["negated"] else b"(?!)"
    members = b"".join(re.escape(bytes((each,))) for each in characters)
    return b"[%b%b]" % (b"^" if found["negated"] else b"", members)


# Commands on keys of any value, and on all keys that have a tag.

TAG_LISTED_MAX: Final = 10_000
TAG_DELETED_MAX: Final = 100_000
_EMBEDDED_BYTES_MAX: Final = 44
_OVERHEAD_BYTES: Final = 56


def delete(turn: Turn, arguments: list[bytes]) -> bytes:
    return integer(sum(map(turn.delete, arguments[1:])))


def exists(turn: Turn, arguments: list[bytes]) -> bytes:
    return integer(sum(turn.get(key) is not None for key in arguments[1:]))


def type_(turn: Turn, arguments: list[bytes]) -> bytes:
    return simple("none" if turn.get(arguments[1]) is None else "string")


def object_(turn: Turn, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    if word not in (b"ENCODING", b"FREQ", b"IDLETIME", b"REFCOUNT"):
        raise unknown_subcommand("OBJECT", arguments[1])
    if len(arguments) != 3:
        raise wrong_number(f"object|{word.decode().lower()}")
    data = turn.data_of(arguments[2])
    if data is None:
        return turn.dialect.null
    if word == b"ENCODING":
        return text(_encoding(data))
    if word == b"FREQ":
        raise RedisError(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please "
            "note that when switching between policies at runtime LRU and LFU data will take some "
            "time to adjust."
        )
    return integer(1 if word == b"REFCOUNT" else 0)


def _encoding(data: bytes) -> str:
    try:
        as_integer(data)
    except RedisError:
        return "embstr" if len(data) <= _EMBEDDED_BYTES_MAX else "raw"
    return "int"


def memory(turn: Turn, arguments: list[bytes]) -> bytes:
    if arguments[1].upper() != b"USAGE":
        raise unknown_subcommand("MEMORY", arguments[1])
    if len(arguments) not in (3, 5):
        raise wrong_number("memory|usage")
    data = turn.data_of(arguments[2])
    if data is None:
        return turn.dialect.null
    return integer(len(arguments[2]) + len(data) + _OVERHEAD_BYTES)


def tag_del(turn: Turn, arguments: list[bytes]) -> bytes:
    """Our own `TAG DEL tag`: deletes all keys with the tag at once, or none."""
    found = [key for key, _ in islice(turn.with_tag(arguments[2]), TAG_DELETED_MAX + 1)]
    if len(found) > TAG_DELETED_MAX:
        raise RedisError(
            f"ERR more than {TAG_DELETED_MAX} keys have this tag: delete some by their names first"
        )
    for key in found:
        turn.delete(key)
    return integer(len(found))


def tag_list(turn: Turn, arguments: list[bytes]) -> bytes:
    """Our own `TAG LIST tag [MATCH pattern] [COUNT n]`: returns keys and values."""
    options = arguments[3:]
    pattern, count = Pattern(b"*"), 0
    if len(options) % 2:
        raise RedisError(SYNTAX)
    for option, value in zip(options[::2], options[1::2], strict=True):
        match option.upper():
            case b"MATCH":
                pattern = Pattern(value)
            case b"COUNT":
                count = as_integer(value)
                if not 1 <= count <= TAG_LISTED_MAX:
                    raise RedisError(f"ERR COUNT is 1 to {TAG_LISTED_MAX}")
            case _:
                raise RedisError(SYNTAX)
    found = ((key, data) for key, data in turn.with_tag(arguments[2]) if pattern.matches(key))
    listed = list(islice(found, count or TAG_LISTED_MAX + 1))
    if len(listed) > TAG_LISTED_MAX:
        raise RedisError(f"ERR more than {TAG_LISTED_MAX} keys have this tag: give MATCH or COUNT")
    return turn.dialect.map((bulk(key), bulk(data)) for key, data in listed)


COMMANDS: Final = (
    writing("del", -2, delete, "Deletes keys", keys=(1, -1, 1), group="generic"),
    writing("unlink", -2, delete, "Deletes keys", keys=(1, -1, 1), group="generic"),
    reading("exists", -2, exists, "How many of the keys exist", keys=(1, -1, 1), group="generic"),
    reading("touch", -2, exists, "How many of the keys exist", keys=(1, -1, 1), group="generic"),
    reading("type", 2, type_, "What kind of value a key has", group="generic"),
    reading("object", -3, object_, "How a value is kept", keys=(2, 2, 1), group="generic"),
    reading("memory", -3, memory, "What a key takes", keys=(2, 2, 1), group="server"),
    RedisCommand(
        name="tag",
        arity=-3,
        flags=("write",),
        first_key=2,
        last_key=2,
        key_step=1,
        group="generic",
        summary="Lists or deletes all keys with a tag",
        subcommands={
            b"LIST": reading("tag|list", -3, tag_list, "Lists all with a tag", keys=(2, 2, 1)),
            b"DEL": writing("tag|del", 3, tag_del, "Deletes all with a tag", keys=(2, 2, 1)),
        },
    ),
)


# Commands on all keys of a table that this node leads.
#
# A node that leads no partition answers READONLY clients with its slaves' keys. For the whole table
# a client asks each master, as clients of Redis Cluster do by themselves. Long commands go through
# keys a slice at a time; other tasks run in between.

SLICE_KEYS: Final = 512
SCAN_COUNT_MAX: Final = 4_096
KEYS_MAX: Final = 100_000
_COUNTS: Final = 3
"""How often partitions are counted anew if their masters change meanwhile."""


class _ScanOptions(msgspec.Struct):
    pattern: Pattern
    count: int = 10
    is_of_strings: bool = True


def _scan_options(words: list[bytes]) -> _ScanOptions:
    options = _ScanOptions(Pattern(b"*"))
    if len(words) % 2:
        raise RedisError(SYNTAX)
    for word, value in zip(words[::2], words[1::2], strict=True):
        match word.upper():
            case b"MATCH":
                options.pattern = Pattern(value)
            case b"COUNT":
                options.count = min(as_integer(value), SCAN_COUNT_MAX)
                if options.count < 1:
                    raise RedisError(SYNTAX)
            case b"TYPE":
                options.is_of_strings = value.lower() == b"string"
            case _:
                raise RedisError(SYNTAX)
    return options


class LocalPartition(msgspec.Struct, frozen=True):
    """A partition, and its slots."""

    slots: range
    copy: PartitionCopy | None
    """None: this node does not list its keys."""


def readable(session: KvSession) -> list[LocalPartition]:
    """Returns all partitions in the order of their slots, with the copies whose keys this node
    lists.

    A client that asks all masters wants each key once, even if it sent READONLY to all of them. A
    master that may not serve now refuses: a client that gathers all answers would miss its keys.
    """
    assert session.user is not None
    copies = session.copies
    table = session.topology.tables.get(session.user.table)
    if table is None or not copies:
        return []
    is_master = any(copy is not None and copy.is_leading for copy in copies)
    is_behind = session.is_reading_behind and not is_master
    parts: list[LocalPartition] = []
    for number in dict.fromkeys(table.places):
        slots = table.slots_of(number)
        copy = copies[place_of_slot(slots.start, len(copies))]
        if copy is not None and (copy.is_serving or (is_behind and copy.may_read_behind)):
            parts.append(LocalPartition(slots, copy))
        elif copy is not None and copy.is_leading:
            raise PartitionFrozen
        elif table.partitions[number].master == session.host.view.node_id:
            if session.host.view.has_lease:
                raise PartitionFrozen(CLUSTER_DOWN)
            raise RedisError(CLUSTER_DOWN)
        else:
            parts.append(LocalPartition(slots, None))
    return parts


def scan(session: KvSession, arguments: list[bytes]) -> bytes:
    assert session.user is not None
    cursors, table = session.host.cursors, session.user.table
    place = cursors.find(as_integer(arguments[1], "ERR invalid cursor"), table=table)
    options = _scan_options(arguments[2:])
    keys: list[bytes] = []
    left, cursor = options.count, 0
    for part in readable(session):
        if part.slots.stop <= place.slot or part.copy is None:
            continue
        # A split-off partition is listed from its beginning.
        after = place.after if place.slot in part.slots else None
        session.expect_read(part.copy, part.copy.seen_of_all())
        seen = _keys_of(session, part.copy, after, left)
        keys += filter(options.pattern.matches, seen)
        left -= len(seen)
        if not left:
            cursor = cursors.add(ScanPlace(table, part.slots.start, seen[-1]))
            break
    return array([text(str(cursor)), bulks(keys if options.is_of_strings else [])])


async def _slices(session: KvSession) -> AsyncIterator[list[bytes]]:
    """Yields all keys here, some at a time; checks before each slice whether it may still serve."""
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


def _keys_of(
    session: KvSession, copy: PartitionCopy, after: bytes | None, count: int
) -> list[bytes]:
    found = copy.store.scan(after=after, now_ms=session.now_ms)
    return [key for key, _ in islice(found, count)]


async def _keys(session: KvSession, pattern: Pattern) -> bytes:
    found: list[bytes] = []
    async for keys in _slices(session):
        found += filter(pattern.matches, keys)
        if len(found) > KEYS_MAX:
            raise RedisError(f"ERR more than {KEYS_MAX} keys match: use SCAN")
    return bulks(found)


async def _count(session: KvSession) -> bytes:
    for _ in range(_COUNTS):
        parts = readable(session)
        counted = {part.copy: await part.copy.store.count() for part in parts if part.copy}
        session.begin_turn()
        if readable(session) == parts:
            break
    else:
        raise PartitionFrozen  # it changes hands, one partition after the other
    known = [count for count in counted.values() if count is not None]
    if len(known) == len(counted):
        for copy in counted:
            session.expect_read(copy, copy.seen_of_all())
        return integer(sum(known))
    count = 0
    async for keys in _slices(session):
        count += len(keys)
    return integer(count)


def keys(session: KvSession, arguments: list[bytes]) -> Answer:
    readable(session)  # raises while a hand-over runs, before anything is gathered
    return _keys(session, Pattern(arguments[1]))


def dbsize(session: KvSession, _: list[bytes]) -> Answer:
    readable(session)
    return _count(session)


def randomkey(session: KvSession, _: list[bytes]) -> bytes:
    """Returns a random key: of a partition chosen by its number of keys, else of the next ones."""
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


def flush(session: KvSession, arguments: list[bytes]) -> bytes:
    if len(arguments) > 2 or (
        len(arguments) == 2 and arguments[1].upper() not in (b"ASYNC", b"SYNC")
    ):
        raise RedisError(SYNTAX)
    for part in readable(session):
        copy = part.copy
        if copy is not None and copy.is_serving and session.sequence_done(copy) is None:
            session.commit(copy, (), flushes=True)
    return OK


TABLE_COMMANDS: Final = (
    serving("scan", -2, scan, "Some of the keys", group="generic", flags=("readonly",)),
    serving("keys", 2, keys, "The keys that match", group="generic", flags=("readonly",)),
    serving("dbsize", 1, dbsize, "How many keys there are", flags=("readonly",)),
    serving("randomkey", 1, randomkey, "Some key", group="generic", flags=("readonly",)),
    serving("flushdb", -1, flush, "Deletes all keys", flags=("write",), is_write=True),
    serving("flushall", -1, flush, "Deletes all keys", flags=("write",), is_write=True),
)
