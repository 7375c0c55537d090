"""BINLOG: reads a table's binlogs, to capture its changes, as a user of the table.

    BINLOG PARTITIONS                            which there are, of which slots, split off which
    BINLOG READ name bytes wait_ms (partition epoch sequence first)…
    BINLOG COMMON partition last (epoch sequence)…
    BINLOG VALUES partition epoch sequence key…

A reader keeps the position (epoch, sequence) of its last record. READ returns the records from
`first` on of each partition whose binlog contains that position, as far as they are done by the
table's ack rule; if there are none it waits for some. Records are returned as they are stored. If a
binlog does not contain the position (a failover cut it), COMMON returns the last sequence that it
shares with the reader's epochs. VALUES returns the present values of keys if the binlog still has
that record, else null: then the reader asks COMMON again.
"""

import asyncio
from typing import Final

from raftwood.base.errors import OutOfRange
from raftwood.base.files import Buffer
from raftwood.zeppelin.commands.command import (
    CLUSTER_DOWN,
    Answer,
    RedisCommand,
    RedisError,
    serving,
    wrong_number,
)
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import HANDED_OVER, KvSession
from raftwood.zeppelin.model import Table
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import BinlogPosition, EpochStart
from raftwood.zeppelin.replication.epochs import common_point, contains, epoch_at
from raftwood.zeppelin.resp import array, bulk, integer, text
from raftwood.zeppelin.slots import place_of_slot

READ_BYTES_MAX: Final = 4 << 20
READ_WAIT_MS_MAX: Final = 5_000
NAME_BYTES_MAX: Final = 64
PARTITIONS_AT_ONCE: Final = 4_096
EPOCHS_MAX: Final = 256
VALUES_MAX: Final = 1_000
VALUES_BYTES_MAX: Final = 4 << 20
"""Bytes of values in one answer, plus one value."""

MOVED: Final = text("moved")
UNKNOWN: Final = text("unknown")
PURGED: Final = text("purged")
RECORDS: Final = text("records")


class _Want:
    """A reader's request for one partition."""

    __slots__ = ("copy", "first", "partition", "position")

    def __init__(
        self, partition: int, position: BinlogPosition, first: int, copy: PartitionCopy | None
    ) -> None:
        self.partition = partition
        self.position = position
        self.first = first
        self.copy = copy
        """None if this node is not the partition's master."""

    def refusal(self) -> bytes | None:
        """Returns why no records can be read, done or not; None if they can."""
        copy = self.copy
        if copy is None or not copy.is_leading or copy.acks.is_over:
            return MOVED
        store, position = copy.store, self.position
        if position.epoch > copy.epoch:
            return MOVED  # a later master wrote that record, so this node is no longer master
        if position.sequence and not contains(store.epochs, store.last_sequence, position):
            return UNKNOWN
        return PURGED if self.first < store.first_sequence else None

    @property
    def is_there(self) -> bool:
        """Whether there is an answer for this partition."""
        copy = self.copy
        return self.refusal() is not None or (copy is not None and copy.acks.reached >= self.first)


def partitions(session: KvSession, _: list[bytes]) -> bytes:
    table = _table(session)
    told = []
    for number, partition in enumerate(table.partitions):
        slots, parent = table.slots_of(number), partition.parent
        numbers = [number, slots.start, slots.stop]
        if parent is not None:
            numbers += [parent.number, parent.epoch, parent.sequence]
        told.append(array([*map(integer, numbers)]))
    return array([text(table.name), integer(table.incarnation), array(told)])


def read(session: KvSession, arguments: list[bytes]) -> Answer:
    name, words = arguments[2], arguments[5:]
    if not 1 <= len(name) <= NAME_BYTES_MAX:
        raise RedisError(f"ERR a reader's name has 1 to {NAME_BYTES_MAX} bytes")
    bytes_max = _within(arguments[3], READ_BYTES_MAX, "bytes")
    wait_ms = _within(arguments[4], READ_WAIT_MS_MAX, "wait_ms")
    if len(words) % 4 or len(words) // 4 > PARTITIONS_AT_ONCE:
        raise wrong_number("binlog|read")
    numbers = [as_integer(word) for word in words]
    now_ns = session.host.environment.clock.monotonic_ns()
    wants = []
    for place in range(0, len(numbers), 4):
        partition, epoch, sequence, first = numbers[place : place + 4]
        copy = _copy(session, partition)
        want = _Want(partition, BinlogPosition(epoch, sequence), first, copy)
        if copy is not None and want.refusal() is None:
            copy.store.readers.note(name, needs=first, now_ns=now_ns)
        wants.append(want)
    return _read(session, wants, bytes_max=bytes_max, wait_ms=wait_ms)


async def _read(session: KvSession, wants: list[_Want], *, bytes_max: int, wait_ms: int) -> bytes:
    if wait_ms and not any(want.is_there for want in wants):
        await _any_done(wants, wait_ms / 1000)
    told = []
    for want in wants:
        answer, size = await _records(want, bytes_max)
        bytes_max -= size
        told.append(array([integer(want.partition), *answer]))
    # A reader that got records behind a split sees by the count that there is a new partition.
    return array([integer(len(_table(session).partitions)), array(told)])


async def _any_done(wants: list[_Want], timeout_s: float) -> None:
    """Waits until one of the partitions has done records, for `timeout_s` at the most."""
    is_done = asyncio.Event()
    waiting = [
        (want.copy.acks, want.copy.acks.wait(want.first, is_done.set))
        for want in wants
        if want.copy is not None
    ]
    try:
        async with asyncio.timeout(timeout_s):
            await is_done.wait()
    except TimeoutError:
        pass
    finally:
        for acks, number in waiting:
            acks.forget(number)


async def _records(want: _Want, bytes_max: int) -> tuple[list[bytes], int]:
    """Returns the answer for one partition, and the size of its records."""
    refusal = want.refusal()
    copy = want.copy
    if refusal is not None or copy is None:
        return [refusal or MOVED], 0
    store, acks = copy.store, copy.acks
    count = acks.reached - want.first + 1
    found: list[Buffer] = []
    if count > 0 and bytes_max > 0:
        try:
            found = (await store.records(first=want.first, bytes_max=bytes_max))[:count]
        except OutOfRange:
            return [PURGED], 0
        if acks.is_over:
            # Another master may have cut the records read meanwhile, and written others that are
            # not done.
            return [MOVED], 0
    records = array([bulk(bytes(each)) for each in found])
    return [RECORDS, integer(acks.reached), records], sum(map(len, found))


def common(session: KvSession, arguments: list[bytes]) -> bytes:
    partition, last = as_integer(arguments[2]), as_integer(arguments[3])
    words = arguments[4:]
    if len(words) % 2 or len(words) > 2 * EPOCHS_MAX:
        raise wrong_number("binlog|common")
    numbers = [as_integer(word) for word in words]
    epochs = [EpochStart(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    copy = _led(session, partition)
    if epochs and epochs[-1].epoch > copy.epoch:
        raise RedisError(HANDED_OVER)
    store = copy.store
    found = common_point(epochs, last, store.epochs, store.last_sequence)
    if found is None or found + 1 < store.first_sequence:
        return session.dialect.null
    return integer(found)


def values(session: KvSession, arguments: list[bytes]) -> Answer:
    keys, common = arguments[5:], BinlogPosition(*map(as_integer, arguments[3:5]))
    if len(keys) > VALUES_MAX:
        raise RedisError(f"ERR BINLOG VALUES takes 1 to {VALUES_MAX} keys")
    copy = _led(session, as_integer(arguments[2]))
    if not copy.is_serving:
        raise RedisError(HANDED_OVER)
    store, now_ms, dialect = copy.store, session.now_ms, session.dialect
    last = store.last_sequence
    if common.sequence and not contains(store.epochs, last, common):
        return dialect.null
    position = [integer(epoch_at(store.epochs, last)), integer(last)]
    session.expect_read(copy, copy.seen_of_all())

    async def run() -> bytes:
        told: list[bytes] = []
        size = 0
        for key, value in zip(keys, await store.multi_get(keys, now_ms=now_ms), strict=True):
            if size > VALUES_BYTES_MAX:
                break
            if value is None:
                told.append(dialect.null_array)
            else:
                told.append(array([bulk(value.data), integer(value.expires_ms)]))
                size += len(key) + len(value.data)
        return array([*position, array(told)])

    return run()


def _table(session: KvSession) -> Table:
    assert session.user is not None
    table = session.topology.tables.get(session.user.table)
    if table is None:
        raise RedisError(CLUSTER_DOWN)
    return table


def _copy(session: KvSession, partition: int) -> PartitionCopy | None:
    table, copies = _table(session), session.copies
    if not copies or not 0 <= partition < len(table.partitions):
        return None
    return copies[place_of_slot(table.slots_of(partition).start, len(copies))]


def _led(session: KvSession, partition: int) -> PartitionCopy:
    """Returns the copy of a partition that this node leads; else raises the redirection."""
    copy = _copy(session, partition)
    if copy is not None and copy.is_leading:
        return copy
    table = _table(session)
    if not 0 <= partition < len(table.partitions):
        raise RedisError(f"ERR there is no partition {partition}")
    raise RedisError(session.elsewhere(table.slots_of(partition).start))


def _within(word: bytes, most: int, name: str) -> int:
    number = as_integer(word)
    if not 0 <= number <= most:
        raise RedisError(f"ERR {name} is 0 to {most}")
    return number


COMMANDS: Final = (
    RedisCommand(
        name="binlog",
        arity=-2,
        flags=("readonly",),
        group="generic",
        summary="Changes of a table, as its partitions have written them",
        subcommands={
            b"PARTITIONS": serving("binlog|partitions", 2, partitions, "Partitions and slots"),
            b"READ": serving("binlog|read", -9, read, "Records behind positions"),
            b"COMMON": serving("binlog|common", -4, common, "Where two binlogs part"),
            b"VALUES": serving("binlog|values", -6, values, "What keys have now, and until when"),
        },
    ),
)
