"""`ZooKeeperMetaStore`: a metastore that any number of processes share, kept in ZooKeeper.

ZooKeeper keeps a log of commands and a snapshot (`ZooKeeperLog`); every process that opens the
store applies the commands, in order, to a `MetastoreState` of its own. So this store follows
exactly the rules of the others. Each process holds the whole state in memory.

    CHROOT/metastore            the format's version
    CHROOT/metastore/mark       which snapshot is the latest, and which entries may be left
    CHROOT/metastore/log/N      entry N, made once and never changed; 0 is empty
    CHROOT/metastore/snapshots/NAME/PIECE

Entry N is made together with a check that N - 1 is there: so N can be made by one writer only, and
only next to the end. Entries are removed from the lowest on and the last one never, so that the end
of the log is where N is there and N + 1 is not.

One task makes all requests. A command is answered once its entry is in the log. If the connection
breaks meanwhile, the store reads the entry's place in the log. Only if another writer's entry
stands there does it try the next place. So no command runs twice.

No entry carries a time. A process that sees a lease not renewed for its time appends an entry that
ends the lease, right behind the last entry that it knows. The append fails if another entry came
meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    InternalError,
    Overloaded,
    PermissionDenied,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.futures import fail
from raftwood.base.seams import SetKey
from raftwood.base.versions import decode_versioned
from raftwood.metastore import commands
from raftwood.metastore.command_store import CommandStore
from raftwood.metastore.commands import Command, MetastoreDone, Transacted
from raftwood.metastore.rules import LeaseDeadlines, MetastoreState, of_size
from raftwood.net.zookeeper_connection import (
    CONNECTION_ERRORS,
    ZooKeeperAddress,
    ZooKeeperConnection,
)

FORMAT_VERSION: Final = 1
ENTRY_VERSION: Final = 1
PIECE_BYTES: Final = 512 << 10
WINDOW_MAX: Final = 64
"""How many nodes are requested at a time."""
_LOADS_MAX: Final = 10


class Trimmed(Exception):
    """Raised if the next entries were removed: load the snapshot."""


class ZooKeeperLogEntry(msgspec.Struct, frozen=True, array_like=True):
    """Commands that one writer appends together."""

    version: int
    writer: int
    commands: tuple[tuple[int, bytes], ...]
    """Each with its writer's number for it."""


class SnapshotMark(msgspec.Struct, frozen=True, array_like=True):
    """The latest snapshot: the state after entry `applied`; without a name, the empty state."""

    format_version: int
    applied: int = 0
    snapshot: str = ""
    pieces: int = 0
    first: int = 0
    """Entries below this one have been removed."""


class ZooKeeperLog:
    """The log and snapshots of one metastore, as nodes of ZooKeeper."""

    def __init__(
        self, connection: ZooKeeperConnection, chroot: str, on_append: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._root = f"{chroot}/metastore"
        # One function for all watches: the client keeps each function once for a node.
        self._watch = connection.told_by(on_append)

    def _entry(self, index: int) -> str:
        return f"{self._root}/log/{index:020d}"

    def _piece(self, snapshot: str, number: int) -> str:
        return f"{self._root}/snapshots/{snapshot}/{number:06d}"

    async def _ask(self, result: Any) -> Any:
        try:
            return await self._connection.call(result)
        except NoAuthError:
            raise PermissionDenied(
                f"ZooKeeper does not allow this below {self._root}: check its access list"
            ) from None

    async def _ask_all(self, results: Sequence[Any]) -> list[Any]:
        """Returns all answers in order; for a node that does not exist, the error."""
        answers = await asyncio.gather(
            *(self._connection.call(each) for each in results), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NoNodeError):
                raise answer
        return answers

    async def prepare(self) -> None:
        """Makes the nodes of an empty store, unless they exist."""
        await self._ask(self._client.ensure_path_async(self._root.rpartition("/")[0]))
        made = self._client.transaction()
        made.create(self._root, b"raftwood metastore")
        made.create(f"{self._root}/log")
        made.create(f"{self._root}/snapshots")
        made.create(f"{self._root}/mark", msgspec.msgpack.encode(SnapshotMark(FORMAT_VERSION)))
        made.create(self._entry(0))
        answers = await self._ask(made.commit_async())
        if not isinstance(answers[0], NodeExistsError):
            _raise_first(answers)

    async def _read_mark(self) -> tuple[SnapshotMark, int]:
        """Returns the mark, and its node's version."""
        data, stat = await self._ask(self._client.get_async(f"{self._root}/mark"))
        return decode_mark(f"{self._root}/mark", data), stat.version

    async def load(self) -> tuple[int, bytes | None]:
        """Returns the last entry in the latest snapshot, and the snapshot if there is one."""
        for _ in range(_LOADS_MAX):
            await self._ask(self._client.sync_async(self._root))
            mark, _ = await self._read_mark()
            if not mark.snapshot:
                return mark.applied, None
            pieces: list[bytes] = []
            for first in range(0, mark.pieces, WINDOW_MAX):
                numbers = range(first, min(first + WINDOW_MAX, mark.pieces))
                paths = [self._piece(mark.snapshot, number) for number in numbers]
                answers = await self._ask_all([self._client.get_async(path) for path in paths])
                pieces += [answer[0] for answer in answers if isinstance(answer, tuple)]
            if len(pieces) == mark.pieces:
                return mark.applied, b"".join(pieces)
            # A newer snapshot took its place meanwhile.
        raise StoreDamaged(f"the latest snapshot at {self._root} in ZooKeeper lacks a piece")

    async def read(
        self, after: int, take: Callable[[int, ZooKeeperLogEntry, int], None], *, latest: bool
    ) -> None:
        """Passes all entries after one to `take`, with number and size, and watches for the next.

        `latest` includes entries that this server has not received yet.
        """
        window = 1
        while True:
            asked = [self._client.sync_async(self._root)] if latest else []
            asked.append(self._client.exists_async(self._entry(after + 1), watch=self._watch))
            # Answered in this order: if the end is still there, then nothing behind it was
            # removed.
            asked.append(self._client.exists_async(self._entry(after)))
            next_there, end_there = (await self._ask_all(asked))[-2:]
            if next_there is None and end_there is None:
                raise Trimmed
            if next_there is None:
                return
            while True:
                paths = [self._entry(after + number) for number in range(1, window + 1)]
                answers = await self._ask_all([self._client.get_async(path) for path in paths])
                found = 0
                for answer in answers:
                    if not isinstance(answer, tuple):
                        break
                    after, found = after + 1, found + 1
                    take(after, decode_entry(self._entry(after), answer[0]), len(answer[0]))
                window = min(4 * window, WINDOW_MAX)
                if found < len(paths):
                    break
            latest = False

    async def append(self, index: int, data: bytes) -> bool:
        """Makes entry `index`, next after all known ones; False if another writer was first."""
        transaction = self._client.transaction()
        transaction.check(self._entry(index - 1), 0)
        transaction.create(self._entry(index), data)
        checked, made = await self._ask(transaction.commit_async())
        if isinstance(checked, NoNodeError):
            raise Trimmed
        if isinstance(made, NodeExistsError):
            return False
        _raise_first((checked, made))
        return True

    async def latest_snapshot(self) -> int:
        return (await self._read_mark())[0].applied

    async def write_snapshot(
        self, applied: int, unique: int, pieces: Iterable[bytes], *, keep_from: int
    ) -> int:
        """Stores a snapshot, makes it the latest, and removes entries below `keep_from`.

        Returns its size. The next snapshot removes the remains of an interrupted one.
        """
        name = f"{applied:020d}-{unique:016x}"
        mark, version = await self._read_mark()
        count = size = 0
        if mark.applied >= applied:
            return size
        try:
            await self._ask(self._client.create_async(f"{self._root}/snapshots/{name}"))
            for piece in pieces:
                await self._ask(self._client.create_async(self._piece(name, count), piece))
                count, size = count + 1, size + len(piece)
            mark = SnapshotMark(FORMAT_VERSION, applied, name, count, mark.first)
            stat = await self._set_mark(mark, version)
        except (BadVersionError, NoNodeError):
            return size  # another client was first, and removes what is left of this one
        await self._trim(mark, keep_from)
        with suppress(BadVersionError):  # then the next snapshot repeats the removal, in vain
            await self._set_mark(msgspec.structs.replace(mark, first=keep_from), stat.version)
        return size

    async def _set_mark(self, mark: SnapshotMark, version: int) -> Any:
        data = msgspec.msgpack.encode(mark)
        return await self._ask(self._client.set_async(f"{self._root}/mark", data, version=version))

    async def _trim(self, mark: SnapshotMark, keep_from: int) -> None:
        """Removes entries, from the lowest on, and other snapshots."""
        for first in range(mark.first, keep_from, WINDOW_MAX):
            indexes = range(first, min(first + WINDOW_MAX, keep_from))
            await self._ask_all([self._client.delete_async(self._entry(each)) for each in indexes])
        snapshots = f"{self._root}/snapshots"
        for name in sorted(await self._ask(self._client.get_children_async(snapshots))):
            if name < mark.snapshot:
                await self._remove_snapshot(f"{snapshots}/{name}")

    async def _remove_snapshot(self, path: str) -> None:
        try:
            pieces = await self._ask(self._client.get_children_async(path))
            for name in pieces:
                await self._ask_all([self._client.delete_async(f"{path}/{name}")])
            await self._ask(self._client.delete_async(path))
        except (NoNodeError, NotEmptyError):
            return  # another process removes it; the next snapshot tries again


def decode_mark(path: str, data: bytes) -> SnapshotMark:
    name = f"{path} in ZooKeeper"
    return decode_versioned(data, SnapshotMark, version=FORMAT_VERSION, name=name)


def decode_entry(path: str, data: bytes) -> ZooKeeperLogEntry:
    name = f"{path} in ZooKeeper"
    return decode_versioned(data, ZooKeeperLogEntry, version=ENTRY_VERSION, name=name)


def _raise_first(answers: Sequence[Any]) -> None:
    """Raises the first error of a transaction as one of ours."""
    for answer in answers:
        if isinstance(answer, NoAuthError):
            raise PermissionDenied("ZooKeeper does not allow it: check its access list")
        if isinstance(answer, CONNECTION_ERRORS):
            raise answer
    for answer in answers:
        if isinstance(answer, ZookeeperError):
            raise InternalError(f"ZooKeeper refused a transaction: {answer!r}")


ENTRY_BYTES_MAX: Final = 768 << 10
"""Bytes of commands in one entry. ZooKeeper takes requests up to 1 MiB, and commands are smaller
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
_PAUSE: Final = Backoff(first_ms=20, longest_ms=1_000)


class _Pending:
    """A command that a caller waits for."""

    __slots__ = ("answer", "command", "proposed")

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.proposed = False


class ZooKeeperMetaStore(CommandStore):
    """A `MetaStore` in ZooKeeper. Call `open`, and `close` when done. Watches reconnect."""

    def __init__(
        self,
        environment: Environment,
        address: ZooKeeperAddress,
        *,
        timeout_ms: int,
        snapshot_entries: int,
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
        self._deadlines = LeaseDeadlines()
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
        """Opens the store at HOST:PORT[,HOST:PORT][/chroot], or begins one there.

        `timeout_ms` bounds every call. Past it, a call raises `Unavailable` if nothing was done,
        `ConnectionLost` if something may have been.
        """
        store = cls(
            environment,
            ZooKeeperAddress.parse(address, chroot=DEFAULT_CHROOT),
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
        self._state = MetastoreState() if snapshot is None else MetastoreState.restored(snapshot)
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
            # No client could renew a lease while the server was away: all leases start anew.
            self._begin_leases_anew()
            self._wake_up()

    def _begin_leases_anew(self) -> None:
        now_ms = self._now_ms()
        self._deadlines = LeaseDeadlines()
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

    async def _fresh(self) -> MetastoreState:
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
        """Appends pending commands and reads others' entries, a round at a time."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                failures = 0
            except CONNECTION_ERRORS:
                # The next round finds out whether this one succeeded.
                self._wake_up()
                await asyncio.sleep(_PAUSE.delay_s(failures, self._environment.random))
                failures += 1
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
            # A pending command may be a renewal: it goes first, unless the lease is long over.
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
        """Appends an entry with the pending commands behind the last known one."""
        # No caller waits for these: 0 is no number of a pending command.
        chosen = [(0, commands.encode(commands.RevokeLease(lease))) for lease in over]
        size = 0
        for operation, pending in self._pending.items():
            size += len(pending.command) + 16
            if chosen and size > ENTRY_BYTES_MAX:
                break
            pending.proposed = True
            chosen.append((operation, pending.command))
        entry = ZooKeeperLogEntry(ENTRY_VERSION, self._writer, tuple(chosen))
        data, index = msgspec.msgpack.encode(entry), self._applied + 1
        if await self._log.append(index, data):
            self._apply(index, entry, len(data))
            self._compact()
        else:
            # It may be our own entry, if its answer was lost.
            await self._log.read(self._applied, self._apply, latest=True)

    def _apply(self, index: int, entry: ZooKeeperLogEntry, size: int) -> None:
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
                assert isinstance(done, MetastoreDone)
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
        # The renewal was earlier; counting from now ends the lease too late at worst, never too
        # early.
        ttl_ms = self._state.lease_ttl_ms(lease)
        if ttl_ms is not None:
            self._deadlines.set(lease, deadline_ms=self._now_ms() + ttl_ms)

    async def _start_over(self) -> None:
        """Reloads the snapshot: entries were removed that this process had not read."""
        # The removed entries may have held these commands.
        for pending in self._pending.values():
            if pending.proposed:
                fail(pending.answer, self._given_up(pending))
        for operation in [number for number, each in self._pending.items() if each.proposed]:
            self._forget(operation)
        await self._load()
        self._tell_change()

    def _compact(self) -> None:
        """Starts a snapshot when the entries since the last one outgrow it."""
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
                # A process that was away for a while finds its own commands in the entries that
                # stay.
                keep_from = applied - (applied - latest) // 2
                size = await self._log.write_snapshot(
                    applied, unique, of_size(slices, PIECE_BYTES), keep_from=keep_from
                )
        except (ZookeeperError, RaftwoodError):
            return  # a later snapshot tries again
        self._snapshot_at, self._snapshot_bytes = applied, size

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_PAUSE_S)
            deadline = self._deadlines.next_ms
            if deadline is not None and deadline <= self._now_ms():
                self._wake_up()

    def _fail(self, error: RaftwoodError) -> None:
        """Ends the store with an error that every caller receives."""
        self._failure = error
        for pending in self._pending.values():
            fail(pending.answer, self._given_up(pending) if pending.proposed else error)
        for reader in self._readers:
            fail(reader, error)
        self._tell_change()

    async def close(self) -> None:
        """Ends the session; the store stays in ZooKeeper."""
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
