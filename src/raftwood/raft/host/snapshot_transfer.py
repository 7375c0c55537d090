"""Snapshots between stores: offered, sent in pieces, each answered, and handed to raft at the end.

The pieces are the container's bytes as they stand on the sender's disk; the receiver verifies them.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    ProtocolError,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.net import Call, Channel, Method, Payload, Service, TypedMethod
from raftwood.net.store_names import STORE_ROLE, store_of
from raftwood.raft.core import Message, MessageKind, Snapshot
from raftwood.raft.host.peers import Peers
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.snapshots import Receiver, SnapshotFiles

SENDS_MAX: Final = 4
"""At once; others wait."""
CALL_TIMEOUT_MS: Final = 10_000
RECEIVER_IDLE_TICKS_MAX: Final = 300
RETRY_PAUSE_S: Final = 0.5
"""Before raft hears of a failure, and sends again: a full disk is not tried with every tick."""

_log = get_logger("raft")
_PIECE: Final = struct.Struct("<QQQ")


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that is about to come, and the message that it belongs to."""

    group: int
    index: int
    term: int
    size: int
    message_term: int


_roles = (STORE_ROLE,)
SNAPSHOT_OFFER = TypedMethod(20, "snapshot-offer", request=Offer, response=bool, roles=_roles)
SNAPSHOT_PIECE = Method(21, "snapshot-piece", roles=_roles)
SNAPSHOT_END = TypedMethod(22, "snapshot-end", request=Offer, response=bool, roles=_roles)


class SnapshotTransfer:
    """Sends and receives; one per host."""

    def __init__(
        self,
        files: SnapshotFiles,
        peers: Peers,
        *,
        own: int,
        piece_bytes: int,
        replica_of: Callable[[int], Replica],
        mark: Callable[[Replica], None],
        on_failure: Callable[[Replica], None],
    ) -> None:
        """`on_failure` is told where a snapshot was not sent, perhaps because it is bad."""
        self._files = files
        self._peers = peers
        self._own = own
        self._piece_bytes = piece_bytes
        self._replica_of = replica_of
        self._mark = mark
        self._on_failure = on_failure
        self._turn = asyncio.Semaphore(SENDS_MAX)
        self._receivers: dict[int, Receiver] = {}
        self._idle_ticks: dict[int, int] = {}
        self.sent_count = 0
        self.received_count = 0

    def register(self, service: Service) -> None:
        service.typed(SNAPSHOT_OFFER, self._on_offer)
        service.task(SNAPSHOT_PIECE, self._on_piece)
        service.typed(SNAPSHOT_END, self._on_end)

    # Sending

    async def send(self, replica: Replica, message: Message) -> None:
        """Send the snapshot of a message, and tell the core how it went, in any case."""
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
            offer = Offer(group, index, snapshot.term, reader.size, message.term)
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

    async def _on_offer(self, call: Call, offer: Offer) -> bool:
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

    def _check(self, replica: Replica, call: Call, offer: Offer) -> None:
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

    async def _on_end(self, call: Call, offer: Offer) -> bool:
        """All pieces are here: the snapshot goes to raft, which may not need it any more."""
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

    def _receiver(self, group: int, index: int) -> Receiver:
        receiver = self._receivers.get(group)
        if receiver is None or receiver.announced.index != index:
            raise NotFound(f"no snapshot of group {group} at {index} is being received: offer it")
        return receiver

    def _forget(self, group: int) -> None:
        self._receivers.pop(group, None)
        self._idle_ticks.pop(group, None)

    async def tick(self) -> None:
        """Drop what is no longer being sent."""
        for group in [*self._idle_ticks]:
            self._idle_ticks[group] += 1
            if self._idle_ticks[group] > RECEIVER_IDLE_TICKS_MAX:
                receiver = self._receivers.get(group)
                self._forget(group)
                if receiver is not None:
                    await receiver.abort()
