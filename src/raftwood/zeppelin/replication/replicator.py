"""A node's part in replication: starts and stops senders and receivers as roles change.

The node opens stores and passes them with the topology that it has persisted. The replicator gives
each partition its role, and serves other nodes on its own listener. Each `PartitionReplica` says
what commands may do.

An `Acker` acks to one master, for all partitions that this node follows there. One call carries all
progress of a turn of the loop. At intervals it acks everything: the master answers for which
partitions it sends nothing. So a slave learns that its master has forgotten it, after a restart or
a new session: otherwise it would wait for records for ever.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Self

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, Overloaded, RaftwoodError, Unavailable
from raftwood.net import Call, Channel, Identity, Payload, Server, ServerLimits, ServerTls, Service
from raftwood.zeppelin.model import Gap, NodeId, Partition, PartitionId, Table, Topology
from raftwood.zeppelin.records import PartitionStore
from raftwood.zeppelin.replication.copy_pace import CopyLimits, CopyThrottle
from raftwood.zeppelin.replication.epochs import WaitToSync, epochs_up_to
from raftwood.zeppelin.replication.full_sync import copy_items, remove_copy
from raftwood.zeppelin.replication.master import MasterReplication
from raftwood.zeppelin.replication.peers import ReplicationNetwork, ReplicationPeers
from raftwood.zeppelin.replication.replica import PartitionReplica, ReplicaContext, ServingLease
from raftwood.zeppelin.replication.sender import RecordSender
from raftwood.zeppelin.replication.slave import SlaveContext
from raftwood.zeppelin.replication.wire import (
    ACK,
    FULL_SYNC,
    RECORDS,
    REPAIR_KEYS,
    TRY_SYNC,
    AckRequest,
    AckResponse,
    RepairKeysRequest,
    RepairKeysResponse,
    SlaveStanding,
    TrySyncRequest,
    TrySyncResponse,
    decode_copy_request,
    decode_parts,
)

CALLS_MAX: Final = 8
"""Calls at a time to a near master; further acks wait and go together."""
CALLS_FAR_MAX: Final = 64
APART_S: Final = 0.01
"""Interval of calls to a far master beyond `CALLS_MAX`. Without them it would get no acks for most
of a round trip, and its clients would wait."""
CHECK_INTERVAL_S: Final = 1.0
_TIMEOUT_MS: Final = 3_000


class Acker:
    """Acks to one master."""

    def __init__(
        self,
        channel: Channel,
        *,
        standing_of: Callable[[PartitionId], SlaveStanding | None],
        on_answer: Callable[[SlaveStanding, int | None, Gap | None, int | None], None],
    ) -> None:
        """`standing_of` returns None for a partition that this master does not feed now.
        `on_answer` gets, for each standing, how many bytes it lags (None if it is not fed), the
        gap, and up to which record all is done; the last two are None if the master does not say.
        """
        self._channel = channel
        self._standing_of = standing_of
        self._on_answer = on_answer
        self._followed: dict[PartitionId, None] = {}
        self._due: dict[PartitionId, None] = {}
        self._calls: dict[asyncio.Future[Payload], list[SlaveStanding]] = {}
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
        self._called_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def follow(self, partition: PartitionId) -> None:
        self._followed[partition] = None

    def forget(self, partition: PartitionId) -> None:
        self._followed.pop(partition, None)
        self._due.pop(partition, None)

    def moved(self, partition: PartitionId) -> None:
        """Notes that a partition has progress to ack, at the end of this turn."""
        self._due[partition] = None
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def tell_all(self) -> None:
        for partition in self._followed:
            self.moved(partition)

    def close(self) -> None:
        self._timer.cancel()
        self._cancel_later()
        self._followed.clear()
        self._due.clear()
        for call in [*self._calls]:
            call.cancel()

    def _check(self) -> None:
        self.tell_all()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._cancel_later()
        if not self._due or self._has_to_wait():
            return
        due, self._due = self._due, {}
        standings = [
            standing for partition in due if (standing := self._standing_of(partition)) is not None
        ]
        if not standings:
            return
        try:
            call = self._channel.call(ACK, ACK.encode(AckRequest(standings)), _TIMEOUT_MS)
        except RaftwoodError:
            # No connection: the next check acks everything.
            return
        self._called_at = self._loop.time()
        self._calls[call] = standings
        call.add_done_callback(self._answered)

    def _has_to_wait(self) -> bool:
        """Whether an ack has to wait for the answer of an earlier call, or for a moment."""
        if len(self._calls) < CALLS_MAX:
            return False
        due_at = self._called_at + APART_S
        if len(self._calls) < CALLS_FAR_MAX and self._loop.time() < due_at:
            self._later = self._loop.call_at(due_at, self._flush)
        return len(self._calls) >= CALLS_FAR_MAX or self._later is not None

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _answered(self, call: "asyncio.Future[Payload]") -> None:
        told = self._calls.pop(call)
        if self._due and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if call.cancelled() or call.exception() is not None:
            return
        response = ACK.decode_response(call.result())
        gaps = response.gaps or [None] * len(told)
        done: list[int | None] = [*response.done] or [None] * len(told)
        for answer in zip(told, response.lags_bytes, gaps, done, strict=False):
            self._on_answer(*answer)


COPIES_MAX: Final = 2
"""Whole copies that a node sends at the same time."""


class Replicator:
    """A node's replication, used as a context manager; call `listen` before the node registers."""

    def __init__(
        self,
        environment: Environment,
        network: ReplicationNetwork,
        node: NodeId,
        *,
        boot: int,
        copies_folder: str,
        lease: ServingLease | None = None,
        changed: Callable[[PartitionReplica], None] = lambda _: None,
        copy_limits: CopyLimits | None = None,
        waited_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`boot` is a higher number at each start of the node, kept in its folder. `copies_folder`
        is for copies on their way: the store's folder of engines, where a start removes what is no
        engine. `changed` is called at once when a replica's permissions change, except at the
        lease's end. `waited_ms` returns the latency of clients since its last call, None if there
        were none.
        """
        self._environment = environment
        self._node = node
        self._copies_folder = copies_folder
        self.lease = lease or ServingLease()
        self._topology = Topology()
        self._replicas: dict[PartitionId, PartitionReplica] = {}
        self._peers = ReplicationPeers(environment, network, node, self._peer_changed)
        self._senders: dict[NodeId, RecordSender] = {}
        self._ackers: dict[NodeId, Acker] = {}
        self._copies = 0
        self.throttle = CopyThrottle(copy_limits or CopyLimits(), waited_ms)
        self.tell_soon: Callable[[], None] = lambda: None
        """Called when the node should report to the meta server at once."""
        self._applying = asyncio.Lock()
        self.slave_world = SlaveContext(
            environment,
            channel_of=self._peers.channel,
            moved=self._moved,
            copies_folder=copies_folder,
            boot=boot,
            throttle=self.throttle,
        )
        self._context = ReplicaContext(
            node=node,
            boot=boot,
            slave_world=self.slave_world,
            sender_of=self._sender_of,
            has_lease=self._has_lease,
            changed=changed,
        )
        self._server = Server(
            self._service(),
            network.server_credentials(node),
            environment.random,
            ServerLimits(connections=network.connections),
        )
        self.admission = self._server.admission

    # Called by the node.

    async def listen(self, host: str, port: int, *, tls: ServerTls | None = None) -> int:
        return await self._server.listen(host, port, tls=tls)

    async def apply(self, topology: Topology, stores: Mapping[PartitionId, PartitionStore]) -> None:
        """Applies a topology, with the stores that are open by now; on return, stores that are not
        named are no longer used.
        """
        async with self._applying:
            self._topology = topology
            for peer in self._peers.learn(topology.nodes):
                await self._forget_peer(peer)
            await self._peers.close_gone()
            wanted = {
                PartitionId(table.incarnation, number): (table, known)
                for table in topology.tables.values()
                for number, known in enumerate(table.partitions)
                if self._node in known.replicas
            }
            for partition in [*self._replicas]:
                is_open = stores.get(partition) is self._replicas[partition].store
                if partition not in wanted or not is_open:
                    await self._replicas.pop(partition).end()
                    self._forget_partition(partition)
            for partition, (table, known) in wanted.items():
                if partition in stores:
                    await self._become(partition, stores[partition], table, known)

    async def _become(
        self, partition: PartitionId, store: PartitionStore, table: Table, known: Partition
    ) -> None:
        if partition not in self._replicas:
            self._replicas[partition] = PartitionReplica(
                partition, store, table.config, self._context
            )
        replica = self._replicas[partition]
        replica.read_durably(is_on=table.has_durable_reads)
        if replica.master != known.master:
            self._forget_partition(partition)
        await replica.become(known)
        if known.master is not None and known.master != self._node:
            self._acker_of(known.master, partition)

    def renew_lease(self, *, asked_ns: int, length_ms: int, epoch: int) -> None:
        """Renews the lease by an answer of the meta server at an epoch, to a request sent at
        `asked_ns` (monotonic).
        """
        if epoch > self._topology.epoch:
            # At a later epoch another node may already be master: apply that topology first.
            return
        self.lease.renew(asked_ns=asked_ns, length_ns=length_ms * 1_000_000)
        for replica in self._replicas.values():
            replica.lead_if_due()

    def replica(self, partition: PartitionId) -> PartitionReplica | None:
        return self._replicas.get(partition)

    @property
    def replicas(self) -> Mapping[PartitionId, PartitionReplica]:
        return self._replicas

    async def close(self) -> None:
        self.throttle.close()
        async with self._applying:
            for replica in self._replicas.values():
                await replica.end()
            for peer in [*self._senders, *self._ackers]:
                await self._forget_peer(peer)
            await self._peers.close()
        await self._server.close(drain_timeout_ms=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Requests of other nodes.

    def _service(self) -> Service:
        service = Service()
        service.typed(TRY_SYNC, self._try_sync)
        service.one_way(RECORDS, self._records)
        service.fast(ACK, self._ack)
        service.typed(REPAIR_KEYS, self._repair_keys)
        service.stream(FULL_SYNC, self._full_sync)
        return service

    async def _try_sync(self, call: Call, request: TrySyncRequest) -> TrySyncResponse:
        slave = NodeId(call.peer.node_id)
        leading = self._leading(request.partition, slave)
        replica = self._replicas.get(request.partition)
        if leading is None or replica is None or replica.partition_epoch < request.partition_epoch:
            return TrySyncResponse(WaitToSync())
        is_up_to_date = replica.partition_epoch == request.partition_epoch
        return TrySyncResponse(
            leading.try_sync(slave, request.session, request.offer, may_replace=is_up_to_date)
        )

    def _records(self, peer: Identity, payload: Payload) -> None:
        source = NodeId(peer.node_id)
        for part in decode_parts(payload):
            replica = self._replicas.get(part.partition)
            if replica is not None and replica.following is not None:
                replica.following.take(source, part)

    def _ack(self, call: Call, payload: Payload) -> None:
        slave = NodeId(call.peer.node_id)
        answers: list[tuple[int, Gap] | None] = []
        done: list[int] = []
        for standing in ACK.decode_request(payload).standings:
            leading = self._leading(standing.partition, slave)
            answers.append(None if leading is None else leading.acked(slave, standing))
            done.append(0 if leading is None else leading.acks.reached)
        lags_bytes = [None if each is None else each[0] for each in answers]
        gaps = [None if each is None else each[1] for each in answers]
        call.reply(ACK.encode(AckResponse(lags_bytes, gaps, done)))

    async def _repair_keys(self, call: Call, request: RepairKeysRequest) -> RepairKeysResponse:
        leading = self._expected_leading(
            request.partition, NodeId(call.peer.node_id), request.partition_epoch
        )
        now_ms = self._environment.clock.wall_ns() // 1_000_000
        return await leading.repair(request.keys, now_ms=now_ms)

    async def _full_sync(self, call: Call, payload: Payload) -> AsyncIterator[bytes]:
        request = decode_copy_request(payload)
        partition = request.partition
        slave = NodeId(call.peer.node_id)
        leading = self._expected_leading(partition, slave, request.partition_epoch)
        store = self._replicas[partition].store
        if self._copies >= COPIES_MAX:
            raise Overloaded(f"this node sends {COPIES_MAX} copies already: ask again")
        self._copies += 1
        files = self._environment.files
        attempt = self._environment.random.getrandbits(63)
        folder = (
            f"{self._copies_folder}/out-{partition.incarnation}-{partition.number}-{attempt:016x}"
        )
        try:
            leading.copy_begins(slave, needs=store.first_sequence)
            sequence = await store.checkpoint(folder)
            leading.copy_begins(slave, needs=sequence + 1)
            epochs = epochs_up_to(store.epochs, sequence)
            items = copy_items(
                files,
                folder,
                request.has,
                sequence=sequence,
                epochs=epochs,
                throttle=self.throttle,
            )
            async with contextlib.aclosing(items):
                with self.throttle.copying():
                    async for item in items:
                        yield item
        finally:
            self._copies -= 1
            await remove_copy(files, folder)

    def _leading(self, partition: PartitionId, slave: NodeId) -> MasterReplication | None:
        """Returns the master's side, if this node is master and the other one its slave."""
        replica = self._replicas.get(partition)
        if replica is None or replica.leading is None or slave not in replica.leading.slaves:
            return None
        return replica.leading

    def _expected_leading(
        self, partition: PartitionId, slave: NodeId, partition_epoch: int
    ) -> MasterReplication:
        """Returns the master's side, for a request that replaces data of the slave: a slave that
        does not know of a split yet has to keep the split-off keys first.
        """
        leading = self._leading(partition, slave)
        if leading is None:
            raise NotFound(f"{self._node} is not master of {partition} with slave {slave}")
        if self._replicas[partition].partition_epoch > partition_epoch:
            raise Unavailable(f"{slave} does not know of {partition} what its master does yet")
        return leading

    # Peers.

    def _has_lease(self) -> bool:
        return self.lease.is_on(self._environment.clock.monotonic_ns())

    def _sender_of(self, peer: NodeId) -> RecordSender | None:
        sender = self._senders.get(peer)
        if sender is None:
            channel = self._peers.channel(peer)
            if channel is None:
                return None
            sender = self._senders[peer] = RecordSender(channel, self._store_of)
        return sender

    def _store_of(self, partition: PartitionId) -> PartitionStore | None:
        replica = self._replicas.get(partition)
        return None if replica is None else replica.store

    def _acker_of(self, master: NodeId, partition: PartitionId) -> None:
        acker = self._ackers.get(master)
        if acker is None:
            channel = self._peers.channel(master)
            if channel is None:
                return
            acker = self._ackers[master] = Acker(
                channel,
                standing_of=lambda partition: self._standing(master, partition),
                on_answer=self._answered,
            )
        acker.follow(partition)

    def _standing(self, master: NodeId, partition: PartitionId) -> SlaveStanding | None:
        replica = self._replicas.get(partition)
        if replica is None or replica.following is None:
            return None
        return replica.following.standing(master)

    def _answered(
        self, standing: SlaveStanding, lag_bytes: int | None, gap: Gap | None, done: int | None
    ) -> None:
        replica = self._replicas.get(standing.partition)
        if replica is not None:
            replica.answered(standing, lag_bytes, gap, done)

    def _moved(self, master: NodeId, partition: PartitionId) -> None:
        acker = self._ackers.get(master)
        if acker is not None:
            acker.moved(partition)
        replica = self._replicas.get(partition)
        if replica is not None and replica.is_awaited:
            self.tell_soon()

    def _peer_changed(self, peer: NodeId, is_connected: bool) -> None:
        if is_connected:
            if peer in self._ackers:
                self._ackers[peer].tell_all()
        elif peer in self._senders:
            self._senders[peer].disconnected()

    def _forget_partition(self, partition: PartitionId) -> None:
        for acker in self._ackers.values():
            acker.forget(partition)

    async def _forget_peer(self, peer: NodeId) -> None:
        if peer in self._ackers:
            self._ackers.pop(peer).close()
        if peer in self._senders:
            await self._senders.pop(peer).close()
