"""`FileMetaStore`: a metastore in one data folder, over the segment log.

A command goes to the log with its time, and is applied and answered once it is durable: no caller
sees what a crash could take back. The store has its own time, which stands still while it is
closed, so a closed store ends no lease.
"""

import asyncio

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, ShuttingDown
from raftwood.base.futures import fail
from raftwood.disk.inspection import REMEDY, Findings, FolderContent
from raftwood.disk.segment_log import LogSettings, Run, SetState, TruncateHead
from raftwood.disk.segment_log.recovery import Damage
from raftwood.disk.store import Store
from raftwood.metastore import commands
from raftwood.metastore.command_store import CommandStore
from raftwood.metastore.commands import Command
from raftwood.metastore.rules import REMOVALS_KEPT, MetastoreState, of_size

_COMMANDS = 1
_SNAPSHOTS = 2
CLUSTER = "metastore"
"""The cluster's name in the folder."""
_PIECE_BYTES_MAX = 256 << 10
_TICK_PAUSE_S = 0.05
SNAPSHOT_BYTES_MIN = 4 << 20


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    now_ms: int
    command: bytes


class _Mark(msgspec.Struct, frozen=True, array_like=True):
    """The entries of the snapshot group that hold a state, and the last command in it."""

    applied: int
    first: int
    last: int


async def check_file_store(_: Environment, content: FolderContent) -> Findings:
    """Verifies the snapshot that the log names, for `raftwood store check`."""
    found = Findings(role="a metastore in one folder", remedy=REMEDY)
    state, pieces = content.state(_COMMANDS), content.groups.get(_SNAPSHOTS)
    if state is None:
        return found
    try:
        mark = msgspec.msgpack.decode(state, type=_Mark)
    except (msgspec.MsgspecError, ValueError) as error:
        reason = f"the mark of the snapshot cannot be read: {error}"
        found.damages.append(Damage(content.log_path, None, reason))
        return found
    if pieces is None or not pieces.head <= mark.first <= mark.last < pieces.next_index:
        reason = f"the snapshot's pieces {mark.first} to {mark.last} are missing"
        found.damages.append(Damage(content.log_path, None, reason))
    found.checked = f"a snapshot of {mark.last - mark.first + 1} pieces"
    return found


class FileMetaStore(CommandStore):
    """A `MetaStore` in one folder. Call `open`, and `close` when done."""

    def __init__(
        self, environment: Environment, store: Store, *, snapshot_bytes_min: int, piece_bytes: int
    ) -> None:
        super().__init__()
        self._environment = environment
        self._store = store
        self._log = store.log
        self._applied = 0
        self._next_index = 1
        self._snapshot_bytes_min = snapshot_bytes_min
        self._piece_bytes = piece_bytes
        self._snapshot_bytes = 0
        self._bytes_since = 0
        self._began_ms = 0
        self._unanswered: dict[int, asyncio.Future[bytes]] = {}
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        environment: Environment,
        path: str,
        *,
        settings: LogSettings | None = None,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        removals_kept: int = REMOVALS_KEPT,
    ) -> "FileMetaStore":
        """Recovers the store in a folder, or begins one there; errors as of `disk.Store`."""
        settings = settings or LogSettings(segment_bytes=16 << 20)
        store = await Store.open(environment, path, cluster=CLUSTER, store=1, settings=settings)
        opened = cls(
            environment,
            store,
            snapshot_bytes_min=snapshot_bytes_min,
            piece_bytes=min(_PIECE_BYTES_MAX, settings.write_bytes_max // 2),
        )
        try:
            await opened._recover(removals_kept)
        except BaseException:
            await store.close()
            raise
        opened._tasks = [asyncio.create_task(opened._tick(), name="leases of the metastore")]
        return opened

    async def _recover(self, removals_kept: int) -> None:
        self._state = MetastoreState(removals_kept=removals_kept)
        log = self._log
        if _COMMANDS in log.groups():
            marked = log.state(_COMMANDS)
            if marked is not None:
                mark = msgspec.msgpack.decode(marked, type=_Mark)
                data = b"".join(await self._entries(_SNAPSHOTS, mark.first, mark.last))
                self._state = MetastoreState.restored(data, removals_kept=removals_kept)
                self._applied, self._snapshot_bytes = mark.applied, len(data)
            last = log.bounds(_COMMANDS).next_index - 1
            for payload in await self._entries(_COMMANDS, self._applied + 1, last):
                stored = msgspec.msgpack.decode(payload, type=_Stored)
                self._state.apply(stored.command, stored.now_ms)
                self._bytes_since += len(payload)
            self._applied = last
        self._next_index = self._applied + 1
        self._began_ms = self._monotonic_ms() - self._state.now_ms

    async def _entries(self, group: int, first: int, last: int) -> list[bytes]:
        found: list[bytes] = []
        while first <= last:
            for run in await self._log.read(group, first):
                if run.first_index <= last:
                    found.append(bytes(run.payload))
                first = run.first_index + 1
        return found

    def _monotonic_ms(self) -> int:
        return self._environment.clock.monotonic_ns() // 1_000_000

    def _now_ms(self) -> int:
        return self._monotonic_ms() - self._began_ms

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown(f"the metastore in {self._store.path} is closed")

    async def _execute(self, command: Command) -> bytes:
        self._check_open()
        commands.check_command(command)
        encoded, now_ms = commands.encode(command), self._now_ms()
        payload = msgspec.msgpack.encode(_Stored(now_ms, encoded))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        index = self._next_index

        def durable() -> None:
            result = self._state.apply(encoded, now_ms)
            self._applied = index
            self._tell_change()
            self._unanswered.pop(index, None)
            if not answer.done():
                answer.set_result(result)

        self._log.append(
            _COMMANDS, term=0, first_index=index, count=1, payload=payload, done=durable
        )
        self._unanswered[index] = answer
        self._next_index += 1
        self._bytes_since += len(payload)
        result = await answer
        self._compact()
        return result

    def _compact(self) -> None:
        """Starts a snapshot when the commands since the last one outgrow it."""
        busy = self._snapshotting is not None and not self._snapshotting.done()
        enough = max(self._snapshot_bytes_min, 2 * self._snapshot_bytes)
        if not (busy or self._closed) and self._bytes_since >= enough:
            self._snapshotting = asyncio.create_task(self._snapshot(), name="metastore's snapshot")

    async def _snapshot(self) -> None:
        applied, slices = self._applied, self._state.snapshot_slices(self._piece_bytes)
        self._bytes_since = size = 0
        log = self._log
        first = next_index = log.bounds(_SNAPSHOTS).next_index if _SNAPSHOTS in log.groups() else 1
        try:
            for piece in of_size(slices, self._piece_bytes):
                await log.commit(Run(_SNAPSHOTS, 0, next_index, 1, piece))
                next_index += 1
                size += len(piece)
            # In one write, so that the old state goes only when the new one is there.
            await log.commit(
                SetState(_COMMANDS, msgspec.msgpack.encode(_Mark(applied, first, next_index - 1))),
                TruncateHead(_COMMANDS, applied),
                TruncateHead(_SNAPSHOTS, first - 1),
            )
        except (DiskFull, Overloaded, ShuttingDown):
            return  # its pieces are skipped; a later snapshot tries again
        self._snapshot_bytes = size

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_PAUSE_S)
            deadline = self._state.next_deadline_ms
            if deadline is not None and deadline <= self._now_ms():
                try:
                    await self._execute(commands.ExpireLeases())
                except (DiskFull, Overloaded):
                    continue  # a lease may end late

    async def _fresh(self) -> MetastoreState:
        self._check_open()
        return self._state

    async def close(self) -> None:
        """Makes everything durable and releases the folder."""
        self._closed = True
        self._tell_change()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._snapshotting is not None:
            self._snapshotting.cancel()
            await asyncio.wait([self._snapshotting])
        try:
            await self._store.close()
        except DiskFull as error:
            # The log is closed all the same; commands that waited for room were never written.
            for answer in self._unanswered.values():
                fail(answer, DiskFull(error.message))
