"""Handles messages of other stores: frames, pings, introductions, questions about membership."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from raftwood.base.errors import DiskFull, Overloaded, ProtocolError, RaftwoodError, StoreDamaged
from raftwood.base.logs import get_logger
from raftwood.net import Identity, Payload, Service
from raftwood.net.identity import store_of
from raftwood.raft.core import MessageKind
from raftwood.raft.engine import RaftEngine
from raftwood.raft.membership import members_of
from raftwood.raft.quiesce import SleepNotice, fall_asleep, stand_soon, wake_without_leader
from raftwood.raft.registry import StoreRegistry
from raftwood.raft.replica import Replica
from raftwood.raft.sessions import encode_nothing
from raftwood.raft.transport import (
    ASK_MEMBERSHIP,
    GROUP_BYTES,
    INTRODUCE,
    PING,
    RAFT_FRAME,
    REMOVED,
    SLEEP,
    Introduction,
    MemberRemoved,
    Transport,
    decode_frame,
    decode_ping,
)

_log = get_logger("raft")
_decode_introduction = msgspec.msgpack.Decoder(Introduction).decode
_decode_sleep = msgspec.msgpack.Decoder(SleepNotice).decode
_decode_removed = msgspec.msgpack.Decoder(MemberRemoved).decode
_PREVOTE = MessageKind.PREVOTE
_HEARTBEAT = MessageKind.HEARTBEAT
_ELECTIONS = (_PREVOTE, MessageKind.VOTE, MessageKind.TIMEOUT_NOW)

STRANGERS_MAX: Final = 1_000


class MessageHandler:
    """One host's handlers; they ignore a store that has not introduced itself."""

    def __init__(
        self,
        own: int,
        replicas: Mapping[int, Replica],
        voting: Mapping[int, Replica],
        peers: Transport,
        book: StoreRegistry,
        turns: RaftEngine,
        *,
        on_removed: Callable[[Replica], None],
        on_damage: Callable[[Replica, StoreDamaged], None],
        propose: Callable[[Replica, bytes], None],
    ) -> None:
        self._own = own
        self._replicas = replicas
        self._voting = voting
        self._peers = peers
        self._book = book
        self._turns = turns
        self._leave = on_removed
        self._on_damage = on_damage
        self._propose = propose
        self._strangers: dict[int, tuple[Identity, Introduction]] = {}
        """Stores that introduced themselves before this one knew their addresses."""

    def register(self, service: Service) -> None:
        service.one_way(RAFT_FRAME, self._on_frame)
        service.one_way(INTRODUCE, self._on_introduction)
        service.one_way(PING, self._on_ping)
        service.one_way(SLEEP, self._on_sleep)
        service.one_way(REMOVED, self._on_removed)
        service.one_way(ASK_MEMBERSHIP, self._on_question)

    def _on_frame(self, peer: Identity, payload: Payload) -> None:
        if self._peers.heard(peer):
            # A frame has all messages of its sender's turn, so no others need be awaited.
            self._turns.at_once(self._take_frame, store_of(peer), payload)

    def _take_frame(self, store: int, payload: Payload) -> None:
        replicas = self._replicas
        mark = self._turns.mark
        for group, message, runs in decode_frame(payload, target=self._own):
            if message.source != store:
                raise ProtocolError(f"store {store} speaks for store {message.source}")
            replica = replicas.get(group) or self._voting.get(group)
            if replica is None or not replica.is_serving:
                continue
            kind = message.kind
            if kind is _PREVOTE:
                self._tell_if_removed(replica, store)
            if store in replica.storage.state.given_up:
                continue
            if kind in _ELECTIONS and not replica.may_elect(message):
                continue
            if kind is _HEARTBEAT and replica.has_lost(message):
                self.on_lost_log(replica, message.commit)
                continue
            replica.receive(message, runs)
            mark(replica)

    def on_lost_log(self, replica: Replica, acknowledged: int) -> None:
        replica.lost_up_to = acknowledged
        self._on_damage(
            replica,
            StoreDamaged(
                f"group {replica.group} has lost the end of its log on store {self._own}: it "
                f"acknowledged entries up to {acknowledged}, and has none after "
                f"{replica.node.raft.log.last_index}"
            ),
        )

    def _on_question(self, peer: Identity, payload: Payload) -> None:
        """Handles the question of a store that is in no membership: was it removed?"""
        store = store_of(peer)
        if not self._peers.heard(peer) or len(payload) != GROUP_BYTES:
            return
        replica = self._replicas.get(int.from_bytes(payload, "little"))
        if replica is not None and replica.is_serving:
            self._tell_if_removed(replica, store)

    def _tell_if_removed(self, replica: Replica, store: int) -> None:
        """Notifies a removed member: raft itself sends nothing to stores that are not members.

        The store drops its data then. Its acknowledgement may have committed the very change that
        removed it, and members that do not know that the change is committed still need its vote.
        So a quorum of the remaining members must have all of it first, and know it: they have
        acknowledged an entry that came later. And a new leader may not have applied yet what its
        predecessor changed.
        """
        if not replica.is_leader or store in members_of(replica.configuration):
            return
        if replica.is_up_to_date and self._is_settled(replica):
            peer = self._peers.get(store)
            if peer is not None:
                said = MemberRemoved(replica.group, replica.term, replica.applied)
                peer.channel.send(REMOVED, msgspec.msgpack.encode(said))

    def _is_settled(self, replica: Replica) -> bool:
        """Whether a quorum has acknowledged an entry that was appended after the first question."""
        raft = replica.node.raft
        asked = (raft.term, replica.configuration)
        if replica.settling is None or replica.settling[0] != asked:
            replica.settling = (asked, raft.log.last_index)
        after = replica.settling[1]
        if raft.log.last_index <= after:
            self._propose(replica, encode_nothing())
        return raft.tracker.committed() > after

    def _on_removed(self, peer: Identity, payload: Payload) -> None:
        """Handles a leader's word that this store was removed, if the leader has applied more."""
        store = store_of(peer)
        try:
            said = _decode_removed(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"store {store} says what nobody understands") from error
        replica = self._replicas.get(said.group)
        if (
            replica is not None
            and replica.is_serving
            and self._peers.heard(peer)
            and not replica.has_given_up(store)
            and replica.is_removed_by(term=said.term, applied=said.applied)
        ):
            self._leave(replica)

    def _on_introduction(self, peer: Identity, payload: Payload) -> None:
        store = store_of(peer)
        try:
            introduction = _decode_introduction(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"store {store} does not introduce itself") from error
        if store not in self._peers and introduction.address:
            # The sender leads a group that this store is about to join.
            self._peers.set_address(store, introduction.address)
        if store in self._peers:
            self._admit(peer, introduction)
        elif len(self._strangers) < STRANGERS_MAX:
            self._strangers[store] = peer, introduction

    def meet(self, stores: Iterable[int]) -> None:
        """Admits stores whose addresses became known, if they have introduced themselves."""
        for store in stores:
            if store in self._peers and store in self._strangers:
                try:
                    self._admit(*self._strangers[store])
                except (DiskFull, Overloaded):
                    continue  # its next ping tries again
                except RaftwoodError as error:
                    _log.warning("refused a store", store=store, reason=error.message)
                del self._strangers[store]

    def _admit(self, peer: Identity, introduction: Introduction) -> None:
        store = store_of(peer)
        known = self._peers.get(store)
        if known is None:
            return
        # A refusal ends the connection, and says nothing about the known store of this number.
        self._book.admit(store, introduction.incarnation)
        before, known.epoch = known.epoch, introduction.epoch
        known.voice = peer
        known.knows_sync_times = introduction.knows_sync_times
        self._peers.heard(peer)
        if before != introduction.epoch:
            known.sync_ms = None
            self._on_new_start(store)

    def _on_new_start(self, store: int) -> None:
        """Notes that a store was restarted: it leads nothing any more, and knows no leader.

        A voter would ask soon, but a learner or a store under repair would not.
        """
        self.replace_leader(store)
        for replica in self._replicas.values():
            is_led_here = replica.is_asleep and replica.is_leader
            if is_led_here and store in members_of(replica.configuration):
                replica.wake()

    def _on_ping(self, peer: Identity, payload: Payload) -> None:
        store = store_of(peer)
        if not self._peers.heard(peer):
            self.meet([store])
            return
        known = self._peers.get(store)
        if known is not None:
            known.sync_ms = decode_ping(payload)

    def _on_sleep(self, peer: Identity, payload: Payload) -> None:
        store = store_of(peer)
        if not self._peers.heard(peer):
            return
        try:
            sleep = _decode_sleep(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"store {store} names no groups to sleep") from error
        for group, term, last_index in sleep.groups:
            replica = self._replicas.get(group)
            if replica is not None and replica.is_serving:
                fall_asleep(replica, store, term, last_index)

    def wake_groups_of(self, store: int) -> None:
        """Wakes the groups that a lost store led: they need another leader."""
        for replica in self._replicas.values():
            if replica.is_asleep and replica.leader == store:
                wake_without_leader(replica)

    def replace_leader(self, store: int) -> None:
        """Replaces the leader of groups at once: its process has ended for certain."""
        for replica in self._replicas.values():
            if replica.is_serving and replica.leader == store:
                stand_soon(replica, store)
                self._turns.mark(replica)
