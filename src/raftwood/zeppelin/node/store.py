"""`NodeStore`: a node's data folder.

    LOCK, IDENTITY, log/          as in any store (`disk/store`)
    engines/TABLE-NUMBER-COPY     the engine of a partition, TABLE being the table's incarnation

The log holds the node's partitions, in one write with the topology's epoch. So after a crash the
node has the old set or the new one. An engine that the log does not name is removed before the node
serves. `open_partition` rolls an engine forward from the binlog.

`split_off` makes the engine of a partition that is split off another one: a copy that shares its
files. The copy of a replica that lags or has diverged is in the same state, and the masters of both
partitions know what is missing. Only if this replica lacks keys of the new slots does the new
partition begin empty, and takes a whole copy before it counts.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from raftwood.base.environment import Clock, Environment
from raftwood.base.errors import NotFound, RaftwoodError, StoreDamaged
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import (
    DropGroup,
    LogSettings,
    LogStatistics,
    Record,
    SetState,
    TruncateHead,
)
from raftwood.disk.store import Store
from raftwood.zeppelin.model import EPOCH_NONE, NodeId, PartitionId
from raftwood.zeppelin.node.binlog import Binlog, decode_records, decode_run
from raftwood.zeppelin.node.engine import LOST, PartitionEngine
from raftwood.zeppelin.node.engine_folders import (
    OWN_GROUP,
    VERSION,
    EngineFolders,
    Engines,
    HeldEngine,
    decode_held,
    encode_held,
    first_engine,
    group_of,
    partition_of,
)
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.replication.epochs import contains
from raftwood.zeppelin.settings import StoreSettings

_READ_BYTES = 1 << 20


async def open_partition(
    *,
    name: str,
    group: int,
    binlog: Binlog,
    home: EngineFolders,
    clock: Clock,
    settings: StoreSettings,
    engine: PartitionEngine | None = None,
) -> StoredPartition:
    """Opens a partition; `StoreDamaged` if engine and binlog do not fit. `engine` may be open."""
    if engine is None:
        engine = PartitionEngine(await home.open(home.folder))
    try:
        await _roll_forward(engine, binlog, name=name, group=group, clock=clock)
    except BaseException:
        await engine.close()
        raise
    return StoredPartition(
        name=name,
        group=group,
        binlog=binlog,
        engine=engine,
        home=home,
        clock=clock,
        settings=settings,
    )


async def _roll_forward(
    engine: PartitionEngine, binlog: Binlog, *, name: str, group: int, clock: Clock
) -> None:
    """Applies the binlog to the engine. The opened log is durable, so the engine stays behind
    it.
    """
    log = binlog.log
    bounds = log.bounds(group)
    if not bounds.head - 1 <= engine.state.sequence < bounds.next_index:
        raise StoreDamaged(
            f"{name}: the engine ends at record {engine.state.sequence}, and the binlog has "
            f"{bounds.head} to {bounds.next_index - 1}; it is taken anew from its master once "
            "another node is that; where none can be, restore the table with 'raftwood kv restore'"
        )
    while (sequence := engine.state.sequence + 1) < bounds.next_index:
        for stored in await log.read(group, sequence, bytes_max=_READ_BYTES):
            run = decode_run(stored.payload)
            records = decode_records(run)[max(0, sequence - run.first_sequence) :]
            keys = [write.key for record in records for write in record.writes]
            await engine.fetch(engine.look_up(keys))
            engine.apply(records, now_ms=clock.wall_ns() // 1_000_000)
            sequence = engine.state.sequence + 1


async def split_off(
    parent: StoredPartition, engines: Engines, name: str, *, at: BinlogPosition, slots: range
) -> PartitionEngine:
    """Makes an engine, durably, and opens it. `at` is the last record that both halves have."""
    folder = engines.folder(name)
    if parent.engine.state.has_all_of(slots):
        await parent.checkpoint(folder)
        async with _opened(engines, folder) as engine:
            if await _is_half(engine, at, slots):
                return engine
            await engine.close()
        await engines.remove(name)
    async with _opened(engines, folder) as engine:
        await engine.begin_lacking(at)
        return engine


async def _is_half(engine: PartitionEngine, at: BinlogPosition, slots: range) -> bool:
    """Turns a copy into the half with these slots; False if the copy does not have all of them."""
    state = engine.state
    has_passed = contains(state.epochs, state.sequence, at)
    # A later flush in the copy also deleted keys that the parent no longer owned.
    if not state.has_all_of(slots) or (has_passed and state.flushed > at.sequence):
        return False
    await engine.split_off(at.sequence if has_passed else state.sequence, slots)
    return True


@asynccontextmanager
async def _opened(engines: Engines, folder: str) -> AsyncIterator[PartitionEngine]:
    """Opens an engine; closes it if the block fails."""
    engine = PartitionEngine(await engines.open(folder))
    try:
        yield engine
    except BaseException:
        await engine.close()
        raise


_NUMBER: Final = 0
"""Number of the store in the folder's stamp; nodes have no such number."""
_MAINTAIN_S: Final = 1.0
REMEDY: Final = (
    "the other replicas have what this node had: start it with an empty zeppelin_node.data_folder, "
    "which makes it a new node, and let 'raftwood kv cluster replace-node OLD NEW' move the old "
    "one's partitions there ('raftwood kv node list' tells both ids)"
)
_log = get_logger("zeppelin")


class Split(msgspec.Struct, frozen=True):
    """A new partition's parent, the last record that both share, and the new one's slots."""

    parent: PartitionId
    at: BinlogPosition
    slots: range


class NodeStore:
    """The partitions of a node, on one event loop. Call `open`, and `close` when done."""

    def __init__(
        self, environment: Environment, store: Store, engines: Engines, settings: StoreSettings
    ) -> None:
        self._environment = environment
        self._store = store
        self._engines = engines
        self._settings = settings
        self._binlog = Binlog(store.log, sync_interval_ms=settings.sync_interval_ms)
        self._homes: dict[PartitionId, EngineFolders] = {}
        self._open: dict[PartitionId, StoredPartition] = {}
        self._split: dict[PartitionId, PartitionEngine] = {}
        """Engines of partitions that just split off, open until used, because clients wait."""
        self._left: list[str] = []
        """Engines of former partitions, still to be removed."""
        self.epoch = EPOCH_NONE
        """The last topology epoch that was applied here."""
        self.boot = 0
        """How often the folder was opened, this time included."""
        for group in store.log.groups():
            state = store.log.state(group)
            if group == OWN_GROUP and state is not None:
                own = decode_own(state)
                self.epoch, self.boot = own.epoch, own.boot
            elif state is not None:
                self._add(partition_of(group), decode_held(state, group=group))
        self._maintaining: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the disk that clients should write less for a moment."""
        return self._binlog.is_behind

    def _add(self, partition: PartitionId, held: HeldEngine) -> None:
        self._homes[partition] = EngineFolders(self._engines, self._store.log, partition, held)

    @classmethod
    async def open(
        cls,
        environment: Environment,
        folder: str,
        engines: Engines,
        *,
        cluster: str,
        settings: StoreSettings | None = None,
        log_settings: LogSettings | None = None,
    ) -> "NodeStore":
        """Opens the node's folder, or begins a new one; no partition is open yet."""
        try:
            store = await Store.open(
                environment, folder, cluster=cluster, store=_NUMBER, settings=log_settings
            )
        except StoreDamaged as error:
            raise StoreDamaged(f"{error.message}; {REMEDY}") from error
        try:
            node = cls(environment, store, engines, settings or StoreSettings())
            node.boot += 1
            await store.log.commit(_own_state(node.epoch, node.boot))
            await node._remove_unheld()
        except BaseException:
            await store.close()
            raise
        loop = asyncio.get_running_loop()
        node._maintaining = loop.create_task(node._maintain(), name=f"upkeep of {folder}")
        return node

    @property
    def id(self) -> NodeId:
        """Drawn when the folder was made: a wiped node is another node."""
        return NodeId(self._store.identity.incarnation)

    def statistics(self) -> LogStatistics:
        """Statistics of the log of all partitions."""
        return self._store.log.statistics()

    def held(self) -> dict[PartitionId, str]:
        """The node's partitions, each with its table's name."""
        return {partition: home.held.table for partition, home in self._homes.items()}

    async def hold(
        self,
        partitions: Mapping[PartitionId, str],
        *,
        epoch: int,
        splits: Mapping[PartitionId, Split] | None = None,
    ) -> dict[PartitionId, str]:
        """Makes these the node's partitions, each with its table's name. Returns those that could
        not be made, each with the reason.

        Durable in one step; dropped partitions are removed later. New ones are empty, unless they
        split off a partition that is here.
        """
        made = {
            partition: HeldEngine(VERSION, table, first_engine(partition, epoch=epoch))
            for partition, table in partitions.items()
            if partition not in self._homes
        }
        failed = await self._split_off(made, splits or {})
        dropped = {
            partition: home
            for partition, home in self._homes.items()
            if partition not in partitions
        }
        for partition in dropped:
            if (opened := self._open.pop(partition, None)) is not None:
                await opened.discard()
            if (half := self._split.pop(partition, None)) is not None:
                await half.close()
        records: list[Record] = [_own_state(epoch, self.boot)]
        records += [
            SetState(group_of(partition), encode_held(held)) for partition, held in made.items()
        ]
        records += [
            TruncateHead(group_of(partition), half.state.sequence)
            for partition, half in self._split.items()
            if partition in made and half.state.sequence
        ]
        records += [DropGroup(group_of(partition)) for partition in dropped]
        if made or dropped:
            await self._store.log.commit(*records)
        else:
            # Only the epoch changed: no need to wait for the disk while clients wait for a
            # hand-over.
            self._store.log.write(records)
        self.epoch = epoch
        for partition, held in made.items():
            self._add(partition, held)
        for partition, home in dropped.items():
            del self._homes[partition]
            self._left.append(home.held.engine)
        return failed

    async def _split_off(
        self, made: dict[PartitionId, HeldEngine], splits: Mapping[PartitionId, Split]
    ) -> dict[PartitionId, str]:
        """Makes the engines of partitions that split off; takes those that fail out of `made`."""
        failed: dict[PartitionId, str] = {}
        for partition, split in splits.items():
            if partition not in made or split.parent not in self._homes:
                continue
            if (half := self._split.pop(partition, None)) is not None:
                await half.close()  # from an attempt that failed later
            try:
                self._split[partition] = await self._open_half(split, made[partition].engine)
            except RaftwoodError as error:
                if error.retriable:
                    raise
                # An empty engine would look like that of a new partition.
                failed[partition] = error.message
                del made[partition]
        return failed

    async def _open_half(self, split: Split, name: str) -> PartitionEngine:
        await self._engines.remove(name)  # left by an earlier attempt
        parent = await self.partition(split.parent)
        return await split_off(parent, self._engines, name, at=split.at, slots=split.slots)

    async def partition(self, partition: PartitionId) -> StoredPartition:
        """Opens a partition of the node, once; raises `NotFound` if the node does not have it."""
        found = self._open.get(partition)
        if found is not None:
            return found
        home = self._homes.get(partition)
        if home is None:
            raise NotFound(
                f"this node has no partition {partition.number} of table {partition.incarnation}"
            )
        opened = await open_partition(
            name=f"partition {partition.number} of {home.held.table}",
            group=group_of(partition),
            binlog=self._binlog,
            home=home,
            clock=self._environment.clock,
            settings=self._settings,
            engine=self._split.pop(partition, None),
        )
        self._open[partition] = opened
        for each in self._open.values():
            each.overlay.cache_bytes_max = self._settings.cache_bytes // len(self._open)
        return opened

    async def begin_anew(self, partition: PartitionId) -> StoredPartition:
        """Gives up a partition's damaged data: it lacks everything until it gets a whole copy.

        The new engine stores that it lacks everything before the log names it, so that no crash
        leaves an empty engine that counts.
        """
        home = self._homes[partition]
        if (opened := self._open.pop(partition, None)) is not None:
            with suppress(RaftwoodError):  # closing a damaged engine may fail
                await opened.discard()
        replaced = home.held.engine
        folder = self._engines.folder(
            f"{first_engine(partition, epoch=self.epoch)}-"
            f"{self._environment.random.getrandbits(63):016x}"
        )
        engine = PartitionEngine(await self._engines.open(folder))
        try:
            await engine.begin_lacking(LOST)
            await home.move(folder, sequence=0)
        except BaseException:
            await engine.close()
            raise
        self._left.append(replaced)
        self._split[partition] = engine
        return await self.partition(partition)

    async def _remove_unheld(self) -> None:
        named = {home.held.engine for home in self._homes.values()}
        for name in await self._engines.names():
            if name not in named:
                await self._engines.remove(name)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_MAINTAIN_S)
            for opened in tuple(self._open.values()):
                try:
                    await opened.maintain()
                except RaftwoodError as error:
                    _log.warning("upkeep failed", partition=opened.name, reason=error.message)
            await self._remove_left()

    async def _remove_left(self) -> None:
        """Removes dropped engines in the background: large ones take longer than a lease."""
        left, self._left = self._left, []
        for name in left:
            try:
                await self._engines.remove(name)
            except RaftwoodError as error:
                _log.warning("an engine is left", folder=name, reason=error.message)
                self._left.append(name)

    async def close(self) -> None:
        """Makes everything durable, closes the engines, and releases the folder."""
        if self._maintaining is not None:
            self._maintaining.cancel()
            await asyncio.wait([self._maintaining])
        try:
            for half in self._split.values():
                await half.close()
            for opened in self._open.values():
                try:
                    await opened.close()
                except RaftwoodError as error:
                    _log.warning("closed with a rest", partition=opened.name, reason=error.message)
        finally:
            self._binlog.close()
            await self._store.close()


class _Own(msgspec.Struct, frozen=True, array_like=True):
    version: int
    epoch: int
    boot: int


def _own_state(epoch: int, boot: int) -> SetState:
    return SetState(OWN_GROUP, msgspec.msgpack.encode(_Own(VERSION, epoch, boot)))


def decode_own(data: bytes) -> _Own:
    try:
        return msgspec.msgpack.decode(data, type=_Own)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"what the log keeps of the node cannot be read: {error}") from error
