"""Snapshots in the life of a replica: taken, kept, used to shorten the log, and restored.

A group keeps its snapshots in order. The state machine is restored from the newest one. A follower
that needs entries from before the log's first gets the oldest one, the visible snapshot, and after
it the whole log that this replica has: whatever must still be read reaches every replica.
"""

import asyncio

import msgspec

from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    OutOfRange,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Record, SegmentLog, State, TruncateHead
from raftwood.raft.core import Snapshot
from raftwood.raft.host.applying import Applier
from raftwood.raft.host.group_state import GroupState
from raftwood.raft.host.group_storage import GroupStorage
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.sessions import SessionTable
from raftwood.raft.host.snapshots import (
    ExtraFileList,
    SnapshotFiles,
    SnapshotMeta,
    SnapshotReader,
)
from raftwood.raft.state_machine import Stopped

_log = get_logger("raft")


class Snapshotting:
    """One per host."""

    def __init__(self, log: SegmentLog, files: SnapshotFiles, peers: Peers) -> None:
        self._log = log
        self._files = files
        self._peers = peers

    # Restoring

    async def restore(
        self, group: int, storage: GroupStorage, applier: Applier, stopped: Stopped
    ) -> None:
        """At a start: bring the state machine to the newest snapshot, and remove left-overs."""
        listed = storage.state.snapshots
        for stored in self._files.stored():
            if stored.group == group and stored.index not in listed:
                await self._files.remove(group, stored.index)
        if listed:
            storage.visible_snapshot = await self._snapshot(group, storage, listed[0])
            await self._recover_machine(group, storage, applier, listed[-1], stopped)

    async def _recover_machine(
        self, group: int, storage: GroupStorage, applier: Applier, index: int, stopped: Stopped
    ) -> None:
        """Put a snapshot's state into the state machine; `StoreDamaged` where it is bad."""
        async with await self._open(group, storage, index) as reader:
            meta = reader.meta
            extra = await reader.extract_extra()
            await applier.machine.recover_from_snapshot(reader.chunks(), extra, stopped)
        if stopped():
            raise ShuttingDown(f"group {group} is being stopped")
        applier.sessions = SessionTable.decoded(meta.host_data)
        applier.configuration = meta.configuration
        applier.configuration_index = meta.configuration_index
        applier.applied, applier.applied_term = meta.index, meta.term
        applier.addresses.update(meta.addresses)

    async def _snapshot(self, group: int, storage: GroupStorage, index: int) -> Snapshot:
        async with await self._open(group, storage, index) as reader:
            meta = reader.meta
        return Snapshot(meta.index, meta.term, meta.configuration)

    async def _open(self, group: int, storage: GroupStorage, index: int) -> SnapshotReader:
        """A snapshot that the state lists; one that is not there is damage."""
        try:
            return await self._files.open(group, index)
        except NotFound as error:
            raise _missing(storage, index, error) from error

    async def verify(self, replica: Replica) -> None:
        """Read all snapshots of a replica; `StoreDamaged` where one is bad or missing."""
        for index in replica.storage.state.snapshots:
            async with await self._open(replica.group, replica.storage, index) as reader:
                try:
                    async for _ in reader.chunks():
                        pass
                except NotFound as error:
                    raise _missing(replica.storage, index, error) from error

    # Taking

    async def save(self, replica: Replica) -> int:
        """Take a snapshot of what is applied now; answers its index."""
        if replica.is_saving:
            raise Unavailable(f"a snapshot of group {replica.group} is being taken: wait for it")
        applier, storage, group = replica.applier, replica.storage, replica.group
        index = applier.applied
        if index == 0:
            raise OutOfRange(f"group {group} has applied nothing yet")
        if index in storage.state.snapshots:
            return index
        meta = SnapshotMeta(
            group,
            index,
            applier.applied_term,
            applier.configuration,
            self.addresses_of(replica),
            applier.sessions.encoded(),
            applier.configuration_index,
        )
        replica.is_saving = True
        try:
            extra = ExtraFileList()
            chunks = applier.machine.save_snapshot(extra, lambda: replica.is_halted)
            stored = await self._files.save(meta, chunks, extra, lambda: replica.is_halted)
        finally:
            replica.is_saving = False
        if stored is None or replica.is_halted:
            raise ShuttingDown(f"group {group} is being stopped")
        snapshots = storage.state.snapshots
        if snapshots and snapshots[-1] > index:
            # One of the leader's has overtaken it.
            await self._files.remove(group, index)
            return snapshots[-1]
        await self._write(
            replica, msgspec.structs.replace(storage.state, snapshots=(*snapshots, index))
        )
        if storage.visible_snapshot is None:
            storage.visible_snapshot = Snapshot(index, meta.term, meta.configuration)
        _log.info("snapshot", group=group, index=index, bytes=stored.size)
        return index

    def addresses_of(self, replica: Replica) -> dict[int, str]:
        known = self._peers.addresses() | replica.applier.addresses
        configuration = replica.applier.configuration
        members = {
            *configuration.voters,
            *configuration.learners,
            *configuration.voters_outgoing,
            *configuration.learners_next,
        }
        return {store: known[store] for store in sorted(members) if store in known}

    # Shortening the log

    async def compact(self, replica: Replica, up_to: int, *, log_up_to: int | None = None) -> int:
        """Make the newest snapshot at or below an index the visible one, and cut the log before it.

        `log_up_to` keeps more of the log, for followers that lag a little. Answers the visible
        snapshot's index; `NotFound` where there is none at or below.
        """
        storage, group = replica.storage, replica.group
        before = storage.state.snapshots
        below = [index for index in before if index <= up_to]
        if not below:
            raise NotFound(f"group {group} has no snapshot at or below {up_to}: take one first")
        visible = below[-1]
        snapshot = await self._snapshot(group, storage, visible)
        if storage.state.snapshots != before:
            raise Unavailable(f"other snapshots came to group {group} meanwhile: try again")
        cut = visible if log_up_to is None else min(visible, log_up_to)
        state = msgspec.structs.replace(
            storage.state, snapshots=tuple(index for index in before if index >= visible)
        )
        records: list[Record] = []
        # Asked only now: another caller may have cut the log further meanwhile.
        if cut >= storage.first_index():
            state = msgspec.structs.replace(state, start_term=storage.term(cut))
            records = [TruncateHead(group, cut)]
        await self._write(replica, state, *records)
        storage.visible_snapshot = snapshot
        for index in before:
            if index < visible:
                await self._files.remove(group, index)
        return visible

    async def drop(self, replica: Replica, index: int) -> None:
        """Remove a snapshot that is neither the visible one nor the newest."""
        storage, group = replica.storage, replica.group
        snapshots = storage.state.snapshots
        if index not in snapshots[1:-1]:
            raise InvalidInput(
                f"snapshot {index} of group {group} is needed, or is none: {snapshots}"
            )
        state = msgspec.structs.replace(
            storage.state, snapshots=tuple(each for each in snapshots if each != index)
        )
        await self._write(replica, state)
        await self._files.remove(group, index)

    def size_of(self, group: int) -> int:
        """The bytes of a group's snapshots."""
        return sum(stored.size for stored in self._files.stored() if stored.group == group)

    async def tell_members(self, replica: Replica) -> None:
        """Let a snapshot take the place of a log that does not tell the group's members.

        Nobody who joins would learn them else. So it is with a log of version 1.
        """
        index = await self.save(replica)
        await self.compact(replica, index)
        state = msgspec.structs.replace(replica.storage.state, voters=())
        await self._write(replica, state)

    async def installed(self, replica: Replica, snapshot: Snapshot) -> None:
        """A leader's snapshot has taken the place of the log: restore it, remove older ones."""
        group = replica.group
        await self._recover_machine(
            group, replica.storage, replica.applier, snapshot.index, lambda: replica.is_halted
        )
        replica.storage.visible_snapshot = snapshot
        for stored in self._files.stored():
            # A later one may have been received that the log does not know of yet.
            if stored.group == group and stored.index < snapshot.index:
                await self._files.remove(group, stored.index)

    async def note(self, replica: Replica, state: GroupState) -> None:
        """Store another state of a replica that runs."""
        await self._write(replica, state)

    async def _write(self, replica: Replica, state: GroupState, *records: Record) -> None:
        """A state that is no part of the core's writes; in memory as soon as the log has it."""
        if replica.is_halted:
            # Its data may be dropped by now: what it says would stand beside other data.
            raise ShuttingDown(f"group {replica.group} is being stopped")
        durable = asyncio.Event()
        self._log.write((State(replica.group, state.encoded()), *records), durable.set)
        replica.storage.state = state
        await durable.wait()


def _missing(storage: GroupStorage, index: int, error: NotFound) -> RaftwoodError:
    """What it means that a snapshot is not there: damage, unless it was removed meanwhile."""
    if index in storage.state.snapshots:
        return StoreDamaged(f"a snapshot is missing: {error.message}")
    return Unavailable(f"a snapshot was removed meanwhile, try again: {error.message}")
