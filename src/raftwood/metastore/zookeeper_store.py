"""`ZooKeeperMetaStore`: a metastore that any number of processes share, kept in ZooKeeper.

ZooKeeper keeps a log of commands and a snapshot (`zookeeper_log`); every process that opens the
store applies the commands, in order, to a `MetaState` of its own. So this store follows the same
rules as the others to the letter. Each process holds the whole state in memory.

One task does all that goes over the connection. A command is answered once its entry is in the
log. Where the connection breaks meanwhile, the place in the log that the entry was meant for tells
whether it is there; only when another's entry stands in it, it is tried at the next place. So no
command is carried out twice.

No entry carries a time. Whoever observes that a lease was not renewed for its time puts an entry to
end it next to the last entry that it knows, which fails if there was another one meanwhile.
"""

import asyncio
from typing import Final

import msgspec
from kazoo.exceptions import ZookeeperError

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    InternalError,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.futures import fail
from raftwood.base.seams import SetKey
from raftwood.metastore import commands
from raftwood.metastore.command_store import CommandStore
from raftwood.metastore.commands import Command, Done, Transacted
from raftwood.metastore.deadlines import Deadlines
from raftwood.metastore.rules import MetaState
from raftwood.metastore.snapshot import of_size
from raftwood.metastore.zookeeper_log import (
    ENTRY_VERSION,
    PIECE_BYTES,
    Entry,
    Trimmed,
    ZooKeeperLog,
)
from raftwood.net.zookeeper_connection import (
    CONNECTION_ERRORS,
    Address,
    ZooKeeperConnection,
)

ENTRY_BYTES_MAX: Final = 768 << 10
"""Of commands that share an entry; ZooKeeper takes requests up to 1 MiB, and commands are smaller
than this (`commands.check_command`)."""
DEFAULT_CHROOT: Final = "/raftwood"
TIMEOUT_MS: Final = 10_000
PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 << 20
SNAPSHOT_BYTES_MIN: Final = 4 << 20
SNAPSHOT_ENTRIES: Final = 10_000
_ENDED_AT_ONCE_MAX: Final = 64
_PATIENCE_MS: Final = 500
_TICK_PAUSE_S: Final = 0.05
_RETRY_PAUSE_S: Final = 0.02
_RETRY_PAUSE_MAX_S: Final = 1.0


class _Pending:
    """A command that its caller waits for."""

    __slots__ = ("answer", "command", "proposed")

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.proposed = False


class ZooKeeperMetaStore(CommandStore):
    """Use `open`, and `close` when done. A watch outlives lost connections."""

    def __init__(
        self, environment: Environment, address: Address, *, timeout_ms: int, snapshot_entries: int
    ) -> None:
        super().__init__()
        self._environment = environment
        self._address = address
        self._timeout_s = timeout_ms / 1000
        self._snapshot_entries = snapshot_entries
        self._connection = ZooKeeperConnection(address.hosts, self._connection_changed)
        self._log = ZooKeeperLog(self._connection, address.chroot, self._wake_up)
        self._writer = environment.random.getrandbits(63)
        self._operation = 0
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._readers: dict[asyncio.Future[None], None] = {}
        self._wake = asyncio.Event()
        self._applied = 0
        self._snapshot_at = 0
        self._snapshot_bytes = 0
        self._bytes_since = 0
        self._deadlines = Deadlines()
        self._failure: RaftwoodError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        environment: Environment,
        address: str,
        *,
        timeout_ms: int | None = None,
        snapshot_entries: int = SNAPSHOT_ENTRIES,
    ) -> "ZooKeeperMetaStore":
        """Open the store at HOST:PORT[,HOST:PORT][/chroot], or begin one there.

        `timeout_ms` bounds every call. Past it, `Unavailable` where nothing was done, and
        `ConnectionLost` where it may have been.
        """
        store = cls(
            environment,
            Address.parse(address, chroot=DEFAULT_CHROOT),
            timeout_ms=timeout_ms or TIMEOUT_MS,
            snapshot_entries=snapshot_entries,
        )
        await store._connection.start(store._timeout_s)
        try:
            async with asyncio.timeout(store._timeout_s):
                await store._begin()
        except (TimeoutError, *CONNECTION_ERRORS):
            await store._connection.stop()
            raise Unavailable(f"{store}: the connection was lost while opening it") from None
        except ZookeeperError as error:
            await store._connection.stop()
            raise StoreDamaged(
                f"{store} cannot be opened ({error!r}): check what stands at that chroot"
            ) from None
        except BaseException:
            await store._connection.stop()
            raise
        store._tasks = [
            asyncio.create_task(store._follow(), name="metastore on ZooKeeper"),
            asyncio.create_task(store._tick(), name="leases of the metastore on ZooKeeper"),
        ]
        return store

    def __str__(self) -> str:
        return f"the metastore at {self._address.hosts}{self._address.chroot}"

    async def _begin(self) -> None:
        await self._log.prepare()
        await self._load()

    async def _load(self) -> None:
        applied, snapshot = await self._log.load()
        self._state = MetaState() if snapshot is None else MetaState.restored(snapshot)
        self._applied = self._snapshot_at = applied
        self._snapshot_bytes = len(snapshot or b"")
        self._bytes_since = 0
        self._begin_leases_anew()
        self._wake_up()

    def _now_ms(self) -> int:
        return self._environment.clock.monotonic_ns() // 1_000_000

    def _wake_up(self) -> None:
        self._wake.set()

    def _connection_changed(self, connected: bool) -> None:
        if connected:
            # Nobody could renew anything over a server that was away: all begin anew.
            self._begin_leases_anew()
            self._wake_up()

    def _begin_leases_anew(self) -> None:
        now_ms = self._now_ms()
        self._deadlines = Deadlines()
        for lease, ttl_ms in self._state.lease_ttls().items():
            self._deadlines.set(lease, deadline_ms=now_ms + ttl_ms)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    async def _execute(self, command: Command) -> bytes:
        self._check_open()
        commands.check_command(command)
        if len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            raise Overloaded(f"{self}: {len(self._pending)} commands wait already: slow down")
        self._operation += 1
        operation, pending = self._operation, _Pending(commands.encode(command))
        self._pending[operation] = pending
        self._pending_bytes += len(pending.command)
        self._wake_up()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await pending.answer
        except TimeoutError:
            raise self._given_up(pending) from None
        finally:
            self._forget(operation)

    def _forget(self, operation: int) -> _Pending | None:
        pending = self._pending.pop(operation, None)
        if pending is not None:
            self._pending_bytes -= len(pending.command)
        return pending

    def _given_up(self, pending: _Pending) -> RaftwoodError:
        if pending.proposed:
            return ConnectionLost(
                f"{self} did not answer: the change may or may not have been made; read it again"
            )
        return Unavailable(f"{self} did not answer: nothing was changed; try again")

    async def _fresh(self) -> MetaState:
        self._check_open()
        if len(self._readers) >= PENDING_MAX:
            raise Overloaded(f"{self}: {PENDING_MAX} reads wait already: slow down")
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers[reader] = None
        self._wake_up()
        try:
            async with asyncio.timeout(self._timeout_s):
                await reader
        except TimeoutError:
            raise Unavailable(f"{self} did not answer: try again") from None
        finally:
            self._readers.pop(reader, None)
        return self._state

    async def _follow(self) -> None:
        """Carry out what is asked for and read what others did, a round at a time."""
        pause_s = _RETRY_PAUSE_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                pause_s = _RETRY_PAUSE_S
            except CONNECTION_ERRORS:
                # The next round finds out what became of this one.
                self._wake_up()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_PAUSE_MAX_S)
            except RaftwoodError as error:
                self._fail(error)
                return
            except ZookeeperError as error:
                self._fail(InternalError(f"{self}: ZooKeeper refused a request: {error!r}"))
                return

    async def _round(self) -> None:
        try:
            await self._exchange()
        except Trimmed:
            await self._start_over()

    async def _exchange(self) -> None:
        readers = list(self._readers)
        over: list[int] = []
        if self._connection.connected:
            # A renewal may be among what waits: it comes first, unless the lease is long over.
            patience_ms = _PATIENCE_MS if self._pending else 0
            over = self._deadlines.due(self._now_ms() - patience_ms)[:_ENDED_AT_ONCE_MAX]
        if self._pending or over:
            await self._propose(over)
            self._wake_up()
        else:
            await self._log.read(self._applied, self._apply, latest=bool(readers))
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    async def _propose(self, over: list[int]) -> None:
        """Put an entry with what waits next to the last one that is known."""
        # Nobody waits for these: 0 is no number of a command that somebody waits for.
        chosen = [(0, commands.encode(commands.RevokeLease(lease))) for lease in over]
        size = 0
        for operation, pending in self._pending.items():
            size += len(pending.command) + 16
            if chosen and size > ENTRY_BYTES_MAX:
                break
            pending.proposed = True
            chosen.append((operation, pending.command))
        entry = Entry(ENTRY_VERSION, self._writer, tuple(chosen))
        data, index = msgspec.msgpack.encode(entry), self._applied + 1
        if await self._log.append(index, data):
            self._apply(index, entry, len(data))
            self._compact()
        else:
            # It may be the own one, if its answer was lost.
            await self._log.read(self._applied, self._apply, latest=True)

    def _apply(self, index: int, entry: Entry, size: int) -> None:
        for operation, command in entry.commands:
            result = self._state.apply(command, 0)
            self._observe_leases(command, result)
            pending = self._forget(operation) if entry.writer == self._writer else None
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(result)
        self._applied = index
        self._bytes_since += size
        self._tell_change()

    def _observe_leases(self, command: bytes, result: bytes) -> None:
        try:
            done = commands.decode_result(result)
        except RaftwoodError:
            return
        match commands.decode_command(command):
            case commands.GrantLease():
                assert isinstance(done, Done)
                self._observe_renewal(done.lease)
            case commands.KeepAlive(lease):
                self._observe_renewal(lease)
            case commands.RevokeLease(lease):
                self._deadlines.remove(lease)
            case commands.Transact(_, then, otherwise):
                assert isinstance(done, Transacted)
                for each in then if done.held else otherwise:
                    if isinstance(each, SetKey) and each.lease:
                        self._observe_renewal(each.lease)

    def _observe_renewal(self, lease: int) -> None:
        # It happened earlier; to count from now on ends it too late at worst, never too early.
        ttl_ms = self._state.lease_ttl_ms(lease)
        if ttl_ms is not None:
            self._deadlines.set(lease, deadline_ms=self._now_ms() + ttl_ms)

    async def _start_over(self) -> None:
        """From the snapshot: others wrote so much that entries are gone that were not read yet."""
        # What became of these stood in one of them.
        for pending in self._pending.values():
            if pending.proposed:
                fail(pending.answer, self._given_up(pending))
        for operation in [number for number, each in self._pending.items() if each.proposed]:
            self._forget(operation)
        await self._load()
        self._tell_change()

    def _compact(self) -> None:
        """Begin a snapshot when the entries since the last one outgrow it."""
        busy = self._snapshotting is not None and not self._snapshotting.done()
        enough = max(SNAPSHOT_BYTES_MIN, 2 * self._snapshot_bytes)
        entries = self._applied - self._snapshot_at
        if not busy and (self._bytes_since >= enough or entries >= self._snapshot_entries):
            self._snapshotting = asyncio.create_task(self._snapshot(), name="metastore's snapshot")

    async def _snapshot(self) -> None:
        applied, slices = self._applied, self._state.snapshot_slices()
        self._bytes_since = size = 0
        try:
            latest = await self._log.latest_snapshot()
            if latest > self._snapshot_at:
                applied = latest  # another client has written one
            else:
                unique = self._environment.random.getrandbits(63)
                # Who was away for a while finds there what became of the own commands.
                keep_from = applied - (applied - latest) // 2
                size = await self._log.write_snapshot(
                    applied, unique, of_size(slices, PIECE_BYTES), keep_from=keep_from
                )
        except (ZookeeperError, RaftwoodError):
            return  # a later one gets another chance
        self._snapshot_at, self._snapshot_bytes = applied, size

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_PAUSE_S)
            deadline = self._deadlines.next_ms
            if deadline is not None and deadline <= self._now_ms():
                self._wake_up()

    def _fail(self, error: RaftwoodError) -> None:
        """Nothing can be done from now on; everybody hears why."""
        self._failure = error
        for pending in self._pending.values():
            fail(pending.answer, self._given_up(pending) if pending.proposed else error)
        for reader in self._readers:
            fail(reader, error)
        self._tell_change()

    async def close(self) -> None:
        """End the session; the store stays in ZooKeeper."""
        if isinstance(self._failure, ShuttingDown):
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(ShuttingDown(f"{self} is closed"))
        if self._snapshotting is not None:
            self._snapshotting.cancel()
            await asyncio.wait([self._snapshotting])
        await self._connection.stop()
