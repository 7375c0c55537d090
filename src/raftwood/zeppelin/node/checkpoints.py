"""Checkpoints: partitions as they were at one moment, read in pages.

A page has pairs of an engine that no longer changes, in the engine's order. It is gathered some
hundred pairs at a time; other tasks run in between. Its pairs depend only on its beginning and its
size limit, so a repeated request gets the same page.
"""

import asyncio
from typing import Final, NamedTuple

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, RaftwoodError, ShuttingDown, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.seams import KvEngine
from raftwood.zeppelin.model import PartitionId, Table
from raftwood.zeppelin.node.engine import (
    DATA_END,
    DATA_START,
    STATE_KEY,
    decode_state,
    decode_value,
    key_of,
    range_of_tag,
)
from raftwood.zeppelin.node.engine_folders import Engines
from raftwood.zeppelin.node.readable_partition import shares_of
from raftwood.zeppelin.node.view import NodeView
from raftwood.zeppelin.pages import encode_page
from raftwood.zeppelin.records import BinlogPosition, PartitionStore
from raftwood.zeppelin.replication.epochs import epoch_at
from raftwood.zeppelin.slots import slot_of, tag_of

SLICE_PAIRS: Final = 500
SLICE_BYTES: Final = 256 << 10
"""Read in one turn of the loop, which takes about a millisecond."""
SKIPPED_FACTOR: Final = 8
"""A page that is not full ends after reading this many times its size."""
_PLAIN: Final = DATA_START[0]
_TAGGED_START: Final = b"\x11"


class PageRequest(msgspec.Struct, frozen=True):
    """Selects pairs."""

    tag: bytes | None = None
    prefix: bytes = b""
    """Prefix of keys."""
    slots: range | None = None
    """Slots of keys; given if the engine may have keys of other partitions."""

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """Returns the ranges of the engine that can hold such pairs, in order."""
        prefix = self.prefix
        tag = self.tag if self.tag is not None else tag_of(prefix)
        if tag is not None:
            return [range_of_tag(tag)]
        if not prefix:
            return [(DATA_START, DATA_END)]
        plain = DATA_START + prefix
        # A key with this prefix may have a tag behind it, and the tag decides where the key is.
        return [(plain, _behind(plain)), (_TAGGED_START, DATA_END)]


class PageRead(NamedTuple):
    """A page, and the cursor of the next one; empty at the end."""

    page: bytes
    cursor: bytes


async def read_page(
    engine: KvEngine, wanted: PageRequest, *, cursor: bytes, now_ms: int, bytes_max: int
) -> PageRead:
    """Reads a page from a cursor, empty at first; leaves out what has expired by `now_ms`."""
    page = _Page(wanted, now_ms, bytes_max)
    for start, end in wanted.ranges():
        if cursor < end:
            page.begin(engine, max(start, cursor), end)
            while page.gather():  # noqa: ASYNC110  other tasks run in between
                await asyncio.sleep(0)
            if page.is_full:
                return PageRead(page.encoded(), page.last + b"\x00")
    return PageRead(page.encoded(), b"")


class _Page:
    """The pairs gathered for a page."""

    def __init__(self, wanted: PageRequest, now_ms: int, bytes_max: int) -> None:
        self._prefix = wanted.prefix
        self._slots = wanted.slots
        self._now_ms = now_ms
        self._bytes_left = bytes_max
        self._looks_left = SKIPPED_FACTOR * bytes_max
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._ends: list[int] = []
        """Expiry times; the last pairs have no entry if they never expire."""
        self.last = b""
        """The engine's key that was read last."""

    def begin(self, engine: KvEngine, start: bytes, end: bytes) -> None:
        self._scan = engine.scan(start, end)

    @property
    def is_full(self) -> bool:
        return self._bytes_left <= 0 or self._looks_left <= 0

    def gather(self) -> bool:
        """Gathers some pairs; returns whether the page may take more."""
        keys, values, prefix, slots = self._keys, self._values, self._prefix, self._slots
        looked = taken = 0
        pairs_left = SLICE_PAIRS
        bytes_left = min(self._bytes_left, SLICE_BYTES)
        place = self.last
        for place, stored in self._scan:
            size = len(place) + len(stored)
            looked += size
            pairs_left -= 1
            key = place[1:] if place[0] == _PLAIN else key_of(place)
            if (not prefix or key.startswith(prefix)) and (slots is None or slot_of(key) in slots):
                if stored[:1] == b"\x00":
                    keys.append(key)
                    values.append(stored[1:])
                    taken += size
                elif self._take_ending(key, stored):
                    taken += size
            if pairs_left == 0 or taken >= bytes_left or looked >= self._looks_left:
                break
        else:
            pairs_left = -1
        self.last = place
        self._bytes_left -= taken
        self._looks_left -= looked
        return pairs_left >= 0 and not self.is_full

    def _take_ending(self, key: bytes, stored: bytes) -> bool:
        value = decode_value(stored)
        if value.expires_ms <= self._now_ms:
            return False
        self._ends += [0] * (len(self._keys) - len(self._ends))
        self._keys.append(key)
        self._values.append(value.data)
        self._ends.append(value.expires_ms)
        return True

    def encoded(self) -> bytes:
        ends = self._ends
        if ends:
            ends += [0] * (len(self._keys) - len(ends))
        return encode_page(self._keys, self._values, ends)


def _behind(prefix: bytes) -> bytes:
    """Returns the first place behind all that begin with this prefix."""
    kept = prefix.rstrip(b"\xff")  # never empty: keys of clients begin with a small byte
    return kept[:-1] + bytes([kept[-1] + 1])


# `PartitionCheckpoints`: partitions as of one moment, kept for clients that read them in pages.
#
# A checkpoint is a copy of a partition's engine that shares its files, in a folder of its own among
# the engines. It does not change when the partition goes on, is cut back, or leaves the node. It
# ends when its reader ends it, when its time to live passes without a request, with its table, and
# with the process: a starting node removes its folder, which belongs to no partition.

CHECKPOINTS_MAX: Final = 512
"""Bound on the checkpoints of all tables on a node."""
CHECKPOINTS_OF_TABLE_MAX: Final = 256
_LOOK_S: Final = 1.0
_log = get_logger("zeppelin")


class PartitionCheckpoint(msgspec.Struct, kw_only=True, eq=False):
    """A checkpoint that clients can read."""

    id: str
    group: str
    """Checkpoints of one group are renewed and ended together; empty: no group."""
    partition: PartitionId
    slots: range
    """The checkpoint has exactly the keys of these slots."""
    told: range | None
    """The same slots, if the engine may also have keys of other partitions; else None."""
    position: BinlogPosition
    """The last record in it."""
    taken_ms: int
    """Pages leave out what had expired by then."""
    engine: KvEngine
    ttl_ms: int
    until: float
    """By the loop's clock."""


class PartitionCheckpoints:
    """The checkpoints of one node; call `close` when done."""

    def __init__(self, view: NodeView, environment: Environment, engines: Engines) -> None:
        self._view = view
        self._environment = environment
        self._engines = engines
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, PartitionCheckpoint] = {}
        self._one_by_one = asyncio.Lock()
        self._tasks: dict[asyncio.Task[PartitionCheckpoint], None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._sweep: asyncio.Task[None] | None = None
        self._is_closed = False

    # Making a checkpoint.

    async def begin(
        self, store: PartitionStore, table: Table, number: int, *, ttl_ms: int, group: str = ""
    ) -> PartitionCheckpoint:
        """Takes a checkpoint of a partition, as of some moment before this returns."""
        self._check_open()
        self._check_room(table)
        taking = self._take(store, table, number, ttl_ms, group)
        # Shielded: a client that leaves meanwhile does not interrupt it.
        task = self._loop.create_task(taking)
        self._tasks[task] = None
        task.add_done_callback(self._taken)
        return await asyncio.shield(task)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ShuttingDown("the node is about to end: ask another one")

    def _check_room(self, table: Table) -> None:
        count = len(self._held) + len(self._tasks)
        of_table = len(self.of_table(table.incarnation)) + len(self._tasks)
        if count >= CHECKPOINTS_MAX or of_table >= CHECKPOINTS_OF_TABLE_MAX:
            raise Overloaded(
                f"this node keeps {count} checkpoints already, {of_table} of table {table.name}; "
                f"it has at most {CHECKPOINTS_MAX}, and {CHECKPOINTS_OF_TABLE_MAX} of a table: end "
                "some that are not needed, or wait until they end by themselves"
            )

    async def _take(
        self,
        store: PartitionStore,
        table: Table,
        number: int,
        ttl_ms: int,
        group: str,
    ) -> PartitionCheckpoint:
        identity = self._environment.random.randbytes(12).hex()
        folder = self._engines.folder(_name(identity))
        async with self._one_by_one:
            self._check_open()
            try:
                sequence = await store.checkpoint(folder)
                position = BinlogPosition(epoch_at(store.epochs, sequence), sequence)
                self._check_not_split(table, number)
                engine = await self._engines.open(folder, is_read_only=True)
            except BaseException:
                await self._engines.remove(_name(identity))
                raise
        taken = PartitionCheckpoint(
            id=identity,
            group=group,
            partition=PartitionId(table.incarnation, number),
            slots=table.slots_of(number),
            told=_told_slots(engine, table, number),
            position=position,
            taken_ms=self._environment.clock.wall_ns() // 1_000_000,
            engine=engine,
            ttl_ms=ttl_ms,
            until=self._loop.time() + ttl_ms / 1000,
        )
        self._held[identity] = taken
        if self._sweep is None:
            self._sweep = self._loop.create_task(self._end_old(), name="upkeep of checkpoints")
        return taken

    def _check_not_split(self, table: Table, number: int) -> None:
        """Raises if a partition was split off meanwhile: its keys are of another moment."""
        now = self._view.topology.tables.get(table.name)
        if now is None or now.incarnation != table.incarnation:
            return
        if len(now.slots_of(number)) < len(table.slots_of(number)):
            raise Unavailable(f"partition {number} of {table.name} was split: begin anew")

    def _taken(self, task: asyncio.Task[PartitionCheckpoint]) -> None:
        self._tasks.pop(task)
        if not task.cancelled():
            task.exception()  # raised in the caller that still waits for it

    # Using a checkpoint.

    def find(self, identity: str, incarnation: int) -> PartitionCheckpoint | None:
        """Returns a table's checkpoint and renews it; None if it has ended."""
        found = self._held.get(identity)
        if found is None or found.partition.incarnation != incarnation:
            return None
        self._renew(found)
        return found

    def find_group(self, group: str, incarnation: int) -> list[PartitionCheckpoint]:
        """Returns a table's checkpoints of one group and renews them."""
        found = [each for each in self.of_table(incarnation) if each.group == group]
        for each in found:
            self._renew(each)
        return found

    def _renew(self, checkpoint: PartitionCheckpoint) -> None:
        checkpoint.until = self._loop.time() + checkpoint.ttl_ms / 1000

    def of_table(self, incarnation: int) -> list[PartitionCheckpoint]:
        return [each for each in self._held.values() if each.partition.incarnation == incarnation]

    @property
    def count(self) -> int:
        return len(self._held)

    def left_ms(self, checkpoint: PartitionCheckpoint) -> int:
        """Time until it expires."""
        return max(0, round((checkpoint.until - self._loop.time()) * 1000))

    async def read(
        self, checkpoint: PartitionCheckpoint, wanted: PageRequest, *, cursor: bytes, bytes_max: int
    ) -> PageRead:
        """Reads a page of a checkpoint from a cursor, and renews it."""
        page = await read_page(
            checkpoint.engine,
            msgspec.structs.replace(wanted, slots=checkpoint.told),
            cursor=cursor,
            now_ms=checkpoint.taken_ms,
            bytes_max=bytes_max,
        )
        self._renew(checkpoint)
        return page

    # Ending a checkpoint.

    async def end(self, checkpoint: PartitionCheckpoint) -> None:
        """Releases a checkpoint; ending one twice is fine."""
        if self._held.pop(checkpoint.id, None) is None:
            return
        # No other call can end it any more, so a client that leaves must not interrupt this.
        task = self._loop.create_task(self._give_back(checkpoint))
        self._ending[task] = None
        task.add_done_callback(self._ending.pop)
        await asyncio.shield(task)

    async def _give_back(self, checkpoint: PartitionCheckpoint) -> None:
        try:
            await checkpoint.engine.close()
            await self._engines.remove(_name(checkpoint.id))
        except RaftwoodError as error:
            # Removed when the node starts again.
            _log.warning("a checkpoint stays on the disk", reason=error.message)

    async def _end_old(self) -> None:
        while self._held:
            await asyncio.sleep(_LOOK_S)
            tables = {table.incarnation for table in self._view.topology.tables.values()}
            for each in list(self._held.values()):
                if each.until <= self._loop.time() or each.partition.incarnation not in tables:
                    await self.end(each)
        self._sweep = None

    async def close(self) -> None:
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.wait([self._sweep])
        for each in list(self._held.values()):
            await self.end(each)
        if self._ending:
            await asyncio.wait(list(self._ending))


def _told_slots(engine: KvEngine, table: Table, number: int) -> range | None:
    """Slots to filter by; nearly always None, as the engine has only the partition's own keys."""
    share = shares_of(table).get(number)
    stored = engine.get(STATE_KEY)
    if share is None or (stored is not None and decode_state(stored).is_trimmed_to(share.slots)):
        return None
    return share.slots


def _name(identity: str) -> str:
    return f"checkpoint-{identity}"
