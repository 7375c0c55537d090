"""Snapshots of replicas: taken, kept, used to shorten the log, restored, and sent to stores.

A group keeps its snapshots in order. The state machine is restored from the newest one. A follower
that needs entries from before the log's first gets the oldest one, the visible snapshot, and after
it the whole log that this replica has. So entries that clients may still read reach every replica,
and not only those that were applied after the newest snapshot (decision 0007).

Between stores a snapshot is offered, sent in pieces, each answered, and handed to raft at the end.
The pieces are the container's bytes as they stand on the sender's disk; the receiver verifies
them.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    OutOfRange,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Record, SegmentLog, SetState, TruncateHead
from raftwood.net import Call, Channel, Method, Payload, Service, TypedMethod
from raftwood.net.identity import STORE_ROLE, store_of
from raftwood.net.method_numbers import MethodNumber
from raftwood.raft.core import Message, MessageKind, Snapshot
from raftwood.raft.group_log import GroupState, GroupStorage
from raftwood.raft.replica import Applier, Replica
from raftwood.raft.sessions import SessionTable
from raftwood.raft.snapshot_files import (
    ExtraFileList,
    SnapshotFiles,
    SnapshotReader,
    SnapshotReceiver,
)
from raftwood.raft.snapshot_format import SnapshotMeta
from raftwood.raft.state_machine import Stopped
from raftwood.raft.transport import Transport

_log = get_logger("raft")


class Snapshotter:
    """The snapshots of one host."""

    def __init__(self, log: SegmentLog, files: SnapshotFiles, peers: Transport) -> None:
        self._log = log
        self._files = files
        self._peers = peers

    # Restoring

    async def restore(
        self, group: int, storage: GroupStorage, applier: Applier, stopped: Stopped
    ) -> None:
        """At a start: brings the state machine to the newest snapshot, and removes left-overs."""
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
        """Restores a snapshot's state in the state machine; `StoreDamaged` if it is bad."""
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
        """Reads all snapshots of a replica; `StoreDamaged` if one is bad or missing."""
        for index in replica.storage.state.snapshots:
            async with await self._open(replica.group, replica.storage, index) as reader:
                try:
                    async for _ in reader.chunks():
                        pass
                except NotFound as error:
                    raise _missing(replica.storage, index, error) from error

    # Taking

    async def save(self, replica: Replica) -> int:
        """Takes a snapshot of the applied state; returns its index.

        The membership and the session table belong to it, as of the same index: the entries that
        made them will be gone. Planted bugs: "saves the membership before the last change", "leaves
        sessions out of snapshots"
        """
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
            # A snapshot of the leader has overtaken it, and the log goes on behind that one.
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
        """Makes the newest snapshot at or below an index visible, and cuts the log before it.

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
        # Compared only now: another caller may have cut the log further meanwhile.
        # Test: test_host_snapshots::test_the_log_begins_where_the_later_of_two_compactions_says
        if cut >= storage.first_index():
            state = msgspec.structs.replace(state, start_term=storage.term(cut))
            records = [TruncateHead(group, cut)]
        # The state that names the snapshots is durable before a file goes. A crash in between
        # leaves files that the next start removes; the other way round, a state that names a
        # missing one.
        await self._write(replica, state, *records)
        storage.visible_snapshot = snapshot
        for index in before:
            if index < visible:
                await self._files.remove(group, index)
        return visible

    async def drop(self, replica: Replica, index: int) -> None:
        """Removes a snapshot that is neither the visible one nor the newest."""
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
        """Replace a log of version 1, which does not hold the group's first members, by a snapshot.

        A store that joins learns the members from the log or a snapshot, and from nothing else.
        Test: test_upgrade::test_a_store_that_joins_a_group_of_version_1_learns_its_members
        """
        index = await self.save(replica)
        await self.compact(replica, index)
        state = msgspec.structs.replace(replica.storage.state, voters=())
        await self._write(replica, state)

    async def installed(self, replica: Replica, snapshot: Snapshot) -> None:
        """Restore a leader's snapshot that has replaced the log, and remove older ones."""
        group = replica.group
        await self._recover_machine(
            group, replica.storage, replica.applier, snapshot.index, lambda: replica.is_halted
        )
        replica.storage.visible_snapshot = snapshot
        for stored in self._files.stored():
            # A later one may have been received that the log does not name yet. Test:
            # test_host_snapshots
            # ::test_a_snapshot_that_has_just_been_received_outlives_the_restoring_of_an_older_one
            if stored.group == group and stored.index < snapshot.index:
                await self._files.remove(group, stored.index)

    async def note(self, replica: Replica, state: GroupState) -> None:
        """Stores another state of a running replica."""
        await self._write(replica, state)

    async def _write(self, replica: Replica, state: GroupState, *records: Record) -> None:
        """Stores a state that is no part of the core's writes; in memory once the log has it."""
        if replica.is_halted:
            # Its data may be dropped by now, and its state would stand beside that of a repair.
            raise ShuttingDown(f"group {replica.group} is being stopped")
        durable = asyncio.Event()
        self._log.write((SetState(replica.group, state.encoded()), *records), durable.set)
        replica.storage.state = state
        await durable.wait()


def _missing(storage: GroupStorage, index: int, error: NotFound) -> RaftwoodError:
    """The error for a snapshot that is not there: damage, unless it was removed meanwhile.

    Test: test_host_snapshots::test_a_snapshot_that_is_removed_while_others_look_for_it_is_no_damage
    """
    if index in storage.state.snapshots:
        return StoreDamaged(f"a snapshot is missing: {error.message}")
    return Unavailable(f"a snapshot was removed meanwhile, try again: {error.message}")


SENDS_MAX: Final = 4
"""How many snapshots are sent at once; others wait."""
CALL_TIMEOUT_MS: Final = 10_000
RECEIVER_IDLE_TICKS_MAX: Final = 300
RETRY_PAUSE_S: Final = 0.5
"""Wait before a failure is reported to raft, which sends again at once.

Test: test_snapshot_sending::test_a_store_without_room_is_not_offered_snapshots_without_a_pause
"""

_PIECE: Final = struct.Struct("<QQQ")


class SnapshotOffer(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that is about to come, and the message that it belongs to."""

    group: int
    index: int
    term: int
    size: int
    message_term: int


_roles = (STORE_ROLE,)
SNAPSHOT_OFFER = TypedMethod(
    MethodNumber.SNAPSHOT_OFFER,
    "snapshot-offer",
    request=SnapshotOffer,
    response=bool,
    roles=_roles,
)
SNAPSHOT_PIECE = Method(MethodNumber.SNAPSHOT_PIECE, "snapshot-piece", roles=_roles)
SNAPSHOT_END = TypedMethod(
    MethodNumber.SNAPSHOT_END, "snapshot-end", request=SnapshotOffer, response=bool, roles=_roles
)


class SnapshotTransfer:
    """Sends and receives; one per host."""

    def __init__(
        self,
        files: SnapshotFiles,
        peers: Transport,
        *,
        own: int,
        piece_bytes: int,
        replica_of: Callable[[int], Replica],
        mark: Callable[[Replica], None],
        on_failure: Callable[[Replica], None],
    ) -> None:
        """`on_failure` is called when a snapshot was not sent, perhaps because it is bad."""
        self._files = files
        self._peers = peers
        self._own = own
        self._piece_bytes = piece_bytes
        self._replica_of = replica_of
        self._mark = mark
        self._on_failure = on_failure
        self._turn = asyncio.Semaphore(SENDS_MAX)
        self._receivers: dict[int, SnapshotReceiver] = {}
        self._idle_ticks: dict[int, int] = {}
        self.sent_count = 0
        self.received_count = 0

    def register(self, service: Service) -> None:
        service.typed(SNAPSHOT_OFFER, self._on_offer)
        service.task(SNAPSHOT_PIECE, self._on_piece)
        service.typed(SNAPSHOT_END, self._on_end)

    # Sending

    async def send(self, replica: Replica, message: Message) -> None:
        """Sends the snapshot of a message, and reports the outcome to the core in any case.

        The core sends that follower nothing else until it knows the outcome.
        """
        failed = True
        try:
            async with self._turn:
                await self._send(replica, message)
            failed = False
            self.sent_count += 1
        except RaftwoodError as error:
            _log.warning(
                "snapshot not sent", group=replica.group, to=message.target, reason=error.message
            )
            if not isinstance(error, Unavailable):
                self._on_failure(replica)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            if replica.is_serving:
                replica.node.report_snapshot(message.target, failed=failed)
                self._mark(replica)

    async def _send(self, replica: Replica, message: Message) -> None:
        peer = self._peers.get(message.target)
        snapshot = message.snapshot
        if peer is None or snapshot is None:
            raise Unavailable(f"the address of store {message.target} is not known")
        channel = peer.channel
        group, index = replica.group, snapshot.index
        async with await self._files.open(group, index) as reader:
            offer = SnapshotOffer(group, index, snapshot.term, reader.size, message.term)
            if await channel.ask(SNAPSHOT_OFFER, offer, CALL_TIMEOUT_MS):
                offset = 0
                while offset < reader.size:
                    data = await reader.read_raw(offset, self._piece_bytes)
                    await self._send_piece(channel, group, index, offset, data)
                    offset += len(data)
            await channel.ask(SNAPSHOT_END, offer, CALL_TIMEOUT_MS)

    async def _send_piece(
        self, channel: Channel, group: int, index: int, offset: int, data: Buffer
    ) -> None:
        piece = _PIECE.pack(group, index, offset) + data
        await channel.call(SNAPSHOT_PIECE, piece, CALL_TIMEOUT_MS)

    # Receiving

    async def _on_offer(self, call: Call, offer: SnapshotOffer) -> bool:
        """Whether the pieces are wanted."""
        self._check(self._replica_of(offer.group), call, offer)
        try:
            receiver = await self._files.begin_receive(
                group=offer.group,
                index=offer.index,
                term=offer.term,
                size=offer.size,
                sender=store_of(call.peer),
            )
        except AlreadyExists:
            return False
        self._receivers[offer.group] = receiver
        self._idle_ticks[offer.group] = 0
        return True

    def _check(self, replica: Replica, call: Call, offer: SnapshotOffer) -> None:
        sender = store_of(call.peer)
        if not self._peers.heard(call.peer):
            raise Unavailable(f"store {sender} has not introduced itself: try again")
        if min(offer.index, offer.term, offer.message_term) <= 0:
            raise ProtocolError(f"store {sender} offers a snapshot of no term or no entry")
        if replica.has_given_up(sender):
            raise Conflict(f"group {replica.group} goes on without store {sender}: remove it there")

    async def _on_piece(self, _: Call, payload: Payload) -> bytes:
        if len(payload) < _PIECE.size:
            raise ProtocolError("a piece of a snapshot ends too early")
        group, index, offset = _PIECE.unpack_from(payload)
        receiver = self._receiver(group, index)
        self._idle_ticks[group] = 0
        await receiver.write(offset, payload[_PIECE.size :])
        return b""

    async def _on_end(self, call: Call, offer: SnapshotOffer) -> bool:
        """Completes a snapshot and passes it to raft, which may no longer need it."""
        group, index = offer.group, offer.index
        replica = self._replica_of(group)
        self._check(replica, call, offer)
        receiver = self._receivers.get(group)
        if receiver is not None and receiver.announced.index == index:
            await receiver.finish()
            self._forget(group)
            self.received_count += 1
        async with await self._files.open(group, index) as reader:
            meta = reader.meta
        if not replica.is_serving:
            raise Unavailable(f"group {group} is not ready on store {self._own}")
        snapshot = Snapshot(meta.index, meta.term, meta.configuration)
        replica.receive(
            Message(
                MessageKind.SNAPSHOT,
                self._own,
                store_of(call.peer),
                offer.message_term,
                snapshot=snapshot,
            ),
            [],
        )
        self._mark(replica)
        if replica.node.raft.log.unstable.snapshot is not snapshot:
            await self._remove_unused(replica, index)
        return True

    async def _remove_unused(self, replica: Replica, index: int) -> None:
        waiting = replica.node.raft.log.unstable.snapshot
        is_used = index in replica.storage.state.snapshots or (
            waiting is not None and waiting.index == index
        )
        if not is_used and not replica.is_saving:
            await self._files.remove(replica.group, index)

    def _receiver(self, group: int, index: int) -> SnapshotReceiver:
        receiver = self._receivers.get(group)
        if receiver is None or receiver.announced.index != index:
            raise NotFound(f"no snapshot of group {group} at {index} is being received: offer it")
        return receiver

    def _forget(self, group: int) -> None:
        self._receivers.pop(group, None)
        self._idle_ticks.pop(group, None)

    async def tick(self) -> None:
        """Aborts incoming snapshots whose sender has fallen silent."""
        for group in [*self._idle_ticks]:
            self._idle_ticks[group] += 1
            if self._idle_ticks[group] > RECEIVER_IDLE_TICKS_MAX:
                receiver = self._receivers.get(group)
                self._forget(group)
                if receiver is not None:
                    await receiver.abort()
