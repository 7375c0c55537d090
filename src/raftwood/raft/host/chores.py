"""What replicas need done beside their turns: snapshots saved, sent, restored; entries fetched."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from raftwood.base.errors import RaftwoodError, ShuttingDown, StoreDamaged
from raftwood.base.logs import get_logger
from raftwood.raft.core import Message, Snapshot
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.settings import RaftHostSettings
from raftwood.raft.host.snapshot_transfer import SnapshotTransfer
from raftwood.raft.host.snapshotting import Snapshotting

INSTALL_PAUSE_S: Final = 1.0
HELD_BACK_MAX: Final = 10
"""The log grows to so many times its usual length for a follower that catches up."""
FETCHES_MAX: Final = 8
"""Groups that read from disk at once, when a store is back that was away for long."""
FETCH_MESSAGES: Final = 8
"""How many messages' entries are read from disk at once for a slow follower."""

_log = get_logger("raft")


class Chores:
    """Tasks of one host; they end with it."""

    def __init__(
        self,
        settings: RaftHostSettings,
        snapshotting: Snapshotting,
        transfer: SnapshotTransfer,
        *,
        on_damage: Callable[[Replica, StoreDamaged], None],
        on_bug: Callable[[str], None],
        learn_addresses: Callable[[dict[int, str]], None],
    ) -> None:
        self._settings = settings
        self._snapshotting = snapshotting
        self._transfer = transfer
        self._on_damage = on_damage
        self._on_bug = on_bug
        self._learn_addresses = learn_addresses
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._fetching = asyncio.Semaphore(FETCHES_MAX)

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._on_bug(f"{task.get_name()} failed: {task.exception()!r}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @contextlib.contextmanager
    def halting(self, replica: Replica) -> Iterator[None]:
        """A replica whose data is bad says nothing more, and is repaired: it must not spread."""
        try:
            yield
        except StoreDamaged as error:
            self._on_damage(replica, error)
            raise

    def applied(self, replica: Replica) -> None:
        """After a batch of entries: take a snapshot if one is due."""
        if replica.storage.state.voters:
            self.tell_members(replica)
        every = self._settings.snapshot_entries
        since = replica.applier.applied - replica.snapshot_index
        if not every or since < every:
            return
        # A follower that gets the last one, or what comes after it, would have to begin again.
        if not replica.is_waited_for or since >= every * HELD_BACK_MAX:
            replica.snapshot_index = replica.applied
            self.run(self._save_and_compact(replica), f"snapshot of group {replica.group}")

    async def _save_and_compact(self, replica: Replica) -> None:
        try:
            with self.halting(replica):
                index = await self._snapshotting.save(replica)
                kept = self._settings.snapshot_entries_kept
                await self._snapshotting.compact(replica, index, log_up_to=max(0, index - kept))
        except RaftwoodError as error:
            _log.warning("no snapshot", group=replica.group, reason=error.message)

    def tell_members(self, replica: Replica) -> None:
        """A log of version 1 begins with members that it does not tell: take a snapshot now."""

        async def tell() -> None:
            with contextlib.suppress(RaftwoodError), self.halting(replica):
                await self._snapshotting.tell_members(replica)

        if not replica.is_saving:
            self.run(tell(), f"members of group {replica.group}")

    def send_snapshot(self, replica: Replica, message: Message) -> None:
        self.run(self._transfer.send(replica, message), f"snapshot to store {message.target}")

    def install_snapshot(
        self, replica: Replica, snapshot: Snapshot, done: Callable[[], None]
    ) -> None:
        """Restore a leader's snapshot that the log has made way for."""
        replica.is_installing = True
        work = self._install(replica, snapshot, done)
        self.run(work, f"snapshot of group {replica.group} at {snapshot.index}")

    async def _install(
        self, replica: Replica, snapshot: Snapshot, done: Callable[[], None]
    ) -> None:
        async with replica.restoring:
            if not await self._restored(replica, snapshot):
                return
        # Another one may have come meanwhile, and waits for its turn.
        replica.is_installing = self._is_overtaken(replica, snapshot)
        replica.proposals.overtaken(snapshot.index)
        if not replica.is_installing:
            replica.reads.applied(snapshot.index)
            replica.snapshot_index = snapshot.index
        self._learn_addresses(replica.applier.addresses)
        done()

    async def _restored(self, replica: Replica, snapshot: Snapshot) -> bool:
        """Restore a snapshot, unless a newer one follows; false where the replica has ended."""
        while not replica.is_halted:
            if self._is_overtaken(replica, snapshot):
                return True
            try:
                with self.halting(replica):
                    await self._snapshotting.installed(replica, snapshot)
                return True
            except (StoreDamaged, ShuttingDown):
                return False
            except RaftwoodError as error:
                # The disk has no room for the snapshot's files, say.
                _log.warning("snapshot not restored", group=replica.group, reason=error.message)
                await asyncio.sleep(INSTALL_PAUSE_S)
        return False

    @staticmethod
    def _is_overtaken(replica: Replica, snapshot: Snapshot) -> bool:
        return snapshot.index not in replica.storage.state.snapshots

    def fetch(self, replica: Replica) -> None:
        """Bring entries into memory that a slow follower needs."""
        first = replica.storage.missed
        if first is not None:
            replica.is_fetching = True
            name = f"entries of group {replica.group} from {first} on"
            self.run(self._fetch(replica, first), name)

    async def _fetch(self, replica: Replica, first: int) -> None:
        try:
            with self.halting(replica):
                async with self._fetching:
                    await replica.storage.fetch(first, self._fetch_bytes(replica))
        except RaftwoodError as error:
            _log.warning("entries not read", group=replica.group, reason=error.message)
        finally:
            replica.is_fetching = False
            replica.storage.missed = None

    def _fetch_bytes(self, replica: Replica) -> int:
        one = self._settings.message_bytes_max
        return max(one, min(one * FETCH_MESSAGES, replica.cache_bytes_max))

    def verify_snapshots(self, replica: Replica) -> None:
        """A snapshot was not taken by its receiver: it may be this store's copy that is bad."""

        async def verify() -> None:
            try:
                with contextlib.suppress(RaftwoodError), self.halting(replica):
                    await self._snapshotting.verify(replica)
            finally:
                replica.is_verifying = False

        if replica.is_verifying:
            return
        replica.is_verifying = True
        self.run(verify(), f"verification of the snapshots of group {replica.group}")
