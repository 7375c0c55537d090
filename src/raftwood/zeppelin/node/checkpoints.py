"""`Checkpoints`: partitions as they were at one moment, kept for those who read them in pages.

A checkpoint is a copy of a partition's engine that shares its files, in a folder of its own among
the engines. It stays as it is although the partition goes on, is cut back, or leaves the node. It
ends when its reader says so, when nobody has asked for it for its time to live, with its table, and
with the process: what the folder is when a node starts is no partition's, and is removed.
"""

import asyncio
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, RaftwoodError, ShuttingDown, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.seams import KvEngine
from raftwood.zeppelin.model import PartitionId, Table
from raftwood.zeppelin.node.checkpoint_reading import PageRead, Wanted, read_page
from raftwood.zeppelin.node.engine_home import Engines
from raftwood.zeppelin.node.engine_state import decode_state
from raftwood.zeppelin.node.seams import BinlogPosition, PartitionStore
from raftwood.zeppelin.node.shares import shares_of
from raftwood.zeppelin.node.values import STATE_KEY
from raftwood.zeppelin.node.view import NodeView
from raftwood.zeppelin.replication.epochs import epoch_at

CHECKPOINTS_MAX: Final = 512
"""Of all tables on a node."""
CHECKPOINTS_OF_TABLE_MAX: Final = 256
_LOOK_S: Final = 1.0
_log = get_logger("zeppelin")


class Checkpoint(msgspec.Struct, kw_only=True, eq=False):
    """One that may be read."""

    id: str
    group: str
    """Those with one name are renewed and ended together; empty: it has none."""
    partition: PartitionId
    slots: range
    """All keys of these, and no others."""
    told: range | None
    """The same, where the engine may have keys of other partitions as well."""
    position: BinlogPosition
    """The last record in it."""
    taken_ms: int
    """What had expired by then is left out."""
    engine: KvEngine
    ttl_ms: int
    until: float
    """By the loop's clock."""


class Checkpoints:
    """Of one node; use `close` when done."""

    def __init__(self, view: NodeView, environment: Environment, engines: Engines) -> None:
        self._view = view
        self._environment = environment
        self._engines = engines
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, Checkpoint] = {}
        self._one_by_one = asyncio.Lock()
        self._tasks: dict[asyncio.Task[Checkpoint], None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._sweep: asyncio.Task[None] | None = None
        self._is_closed = False

    # Making one.

    async def begin(
        self, store: PartitionStore, table: Table, number: int, *, ttl_ms: int, group: str = ""
    ) -> Checkpoint:
        """Of a partition's state as it is at some moment before this returns."""
        self._check_open()
        self._check_room(table)
        taking = self._take(store, table, number, ttl_ms, group)
        # A client that leaves meanwhile does not end it half-way.
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
    ) -> Checkpoint:
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
        taken = Checkpoint(
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
        """What was split off meanwhile is not of the same moment."""
        now = self._view.topology.tables.get(table.name)
        if now is None or now.incarnation != table.incarnation:
            return
        if len(now.slots_of(number)) < len(table.slots_of(number)):
            raise Unavailable(f"partition {number} of {table.name} was split: begin anew")

    def _taken(self, task: asyncio.Task[Checkpoint]) -> None:
        self._tasks.pop(task)
        if not task.cancelled():
            task.exception()  # told to whoever still waits for it

    # Using one.

    def find(self, identity: str, incarnation: int) -> Checkpoint | None:
        """That of a table, whose time begins anew; None where there is none any more."""
        found = self._held.get(identity)
        if found is None or found.partition.incarnation != incarnation:
            return None
        self._renew(found)
        return found

    def find_group(self, group: str, incarnation: int) -> list[Checkpoint]:
        """Those of a table with one name, whose time begins anew."""
        found = [each for each in self.of_table(incarnation) if each.group == group]
        for each in found:
            self._renew(each)
        return found

    def _renew(self, checkpoint: Checkpoint) -> None:
        checkpoint.until = self._loop.time() + checkpoint.ttl_ms / 1000

    def of_table(self, incarnation: int) -> list[Checkpoint]:
        return [each for each in self._held.values() if each.partition.incarnation == incarnation]

    @property
    def count(self) -> int:
        return len(self._held)

    def left_ms(self, checkpoint: Checkpoint) -> int:
        """Until it ends by itself."""
        return max(0, round((checkpoint.until - self._loop.time()) * 1000))

    async def read(
        self, checkpoint: Checkpoint, wanted: Wanted, *, cursor: bytes, bytes_max: int
    ) -> PageRead:
        """A page of it, from a cursor on."""
        page = await read_page(
            checkpoint.engine,
            msgspec.structs.replace(wanted, slots=checkpoint.told),
            cursor=cursor,
            now_ms=checkpoint.taken_ms,
            bytes_max=bytes_max,
        )
        self._renew(checkpoint)
        return page

    # The end of one.

    async def end(self, checkpoint: Checkpoint) -> None:
        """Give back what it takes; ending one twice is fine."""
        if self._held.pop(checkpoint.id, None) is None:
            return
        # Nobody else knows of it any more: a client that leaves does not end this half-way either.
        task = self._loop.create_task(self._give_back(checkpoint))
        self._ending[task] = None
        task.add_done_callback(self._ending.pop)
        await asyncio.shield(task)

    async def _give_back(self, checkpoint: Checkpoint) -> None:
        try:
            await checkpoint.engine.close()
            await self._engines.remove(_name(checkpoint.id))
        except RaftwoodError as error:
            # Removed when the node is started again.
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
    """None where the engine has keys of no other partition, as nearly always."""
    share = shares_of(table).get(number)
    stored = engine.get(STATE_KEY)
    if share is None or (stored is not None and decode_state(stored).is_trimmed_to(share.slots)):
        return None
    return share.slots


def _name(identity: str) -> str:
    return f"checkpoint-{identity}"
