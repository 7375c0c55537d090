"""`NodeMembership`: applies the meta server's topology to a node, and reports the node's progress.

A watch brings changes at once; each heartbeat's answer brings them too, with a lease that counts
only once the topology of that answer is applied here. The set of the node's partitions is on the
disk before the node acts by it. The node serves nothing before the meta server has answered this
run of the process: its former partitions may belong to another node by now, or to none.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, NotFound, RaftwoodError, StoreDamaged, Unavailable
from raftwood.base.logs import get_logger
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.deltas import Delta, applied
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.model import (
    EPOCH_NONE,
    NodeAddresses,
    NodeId,
    PartitionId,
    PartitionState,
    TableConfig,
    Topology,
)
from raftwood.zeppelin.node.engine import LOST
from raftwood.zeppelin.node.readable_partition import shares_of
from raftwood.zeppelin.node.served_copies import ServedCopies
from raftwood.zeppelin.node.store import NodeStore, Split
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.settings import ZeppelinMetaSettings

_OPENED_AT_ONCE: Final = 4
"""Partitions that are opened before the next heartbeat."""
_HANDOVER_MS: Final = 50
"""Heartbeat interval while writes wait for a hand-over of this node; news is sent at once."""
_PAUSE: Final = Backoff(first_ms=250, longest_ms=250)
LEAVING_S_MAX: Final = 20.0
"""How long a stopping node hands over its masters."""
_NO_TAKER_S: Final = 1.0
"""Without a hand-over for so long, no other node takes anything."""
_LEAVING_STEP_S: Final = 0.02
_TOLD_S: Final = 0.1
"""Time for clients that waited for a hand-over to learn the new address."""
_log = get_logger("zeppelin")


class NodeRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """What a node registers at the meta server."""

    addresses: NodeAddresses
    failure_domain: str


class NodeMembership:
    """The membership of one node; call `start`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        meta: MetaClient,
        settings: ZeppelinMetaSettings,
        store: NodeStore,
        replicator: Replicator,
        view: ServedCopies,
        registration: NodeRegistration,
    ) -> None:
        self._environment = environment
        self._meta = meta
        self._heartbeat_ms = settings.heartbeat_ms
        self._timeout_ms = settings.lease_ms // 2
        self._store = store
        self._replicator = replicator
        self._view = view
        self._registration = registration
        self._stores: dict[PartitionId, StoredPartition] = {}
        self._unusable: dict[PartitionId, str] = {}
        """Partitions that could not be opened, and why."""
        self._damaged: dict[PartitionId, None] = {}
        """Those of them with bad data, which masters' copies replace."""
        self._changing = asyncio.Lock()
        self._is_due = asyncio.Event()
        """Set when a heartbeat has news."""
        replicator.tell_soon = self._is_due.set
        self._is_missing = asyncio.Event()
        """Set when partitions are to be opened."""
        self._is_leaving = False
        self._is_unfinished = False
        """The topology is known, but applying it failed in part."""
        self._tasks: list[asyncio.Task[None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self.applied_epoch = EPOCH_NONE
        """All of the topology of this epoch is applied here."""
        self._moment: LeaderMoment | None = None
        """The meta server's own time in its last answer."""
        self._refusal = "it has not heard from the meta server yet"

    @property
    def topology(self) -> Topology:
        """The topology as known here, applied or not."""
        return self._view.topology

    @property
    def node(self) -> NodeId:
        return self._store.id

    def problem(self) -> str:
        """Why the node is of little use at the moment; empty if it works."""
        if self._refusal:
            return self._refusal
        for reason in self._unusable.values():
            return reason
        return ""

    async def start(self) -> None:
        """Returns once the meta server has answered, and its topology is applied."""
        await self._open(sorted(self._store.held()))
        await self._begin()
        self._run(self._send_heartbeats(), "heartbeats")
        self._run(self._watch(), "watch")
        self._run(self._open_missing(), "openings")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(work, name=f"{name} of {self.node}"))

    async def _begin(self) -> None:
        while True:
            try:
                await self._register()
                await self._heartbeat()
            except RaftwoodError as error:
                if not error.retriable:
                    raise
                self._note(error.message)
            else:
                return
            await asyncio.sleep(_PAUSE.delay_s(0, self._environment.random))

    async def leave(self) -> None:
        """Hands over the partitions that this node leads, as far as others can take them."""
        loop = asyncio.get_running_loop()
        self._is_leaving = True
        self._is_due.set()
        left, changed_s = self._to_hand_over(), loop.time()
        if not left:
            return
        end_s = changed_s + LEAVING_S_MAX
        while left and loop.time() < min(end_s, changed_s + _NO_TAKER_S):
            await asyncio.sleep(_LEAVING_STEP_S)
            before, left = left, self._to_hand_over()
            if left != before or self._is_handing_over():
                changed_s = loop.time()
        await asyncio.sleep(_TOLD_S)

    def _to_hand_over(self) -> int:
        """Returns how many partitions this node leads that have a slave which is up."""
        topology = self._view.topology
        return sum(
            known.master == self.node and any(topology.nodes[each].is_up for each in known.slaves)
            for table in topology.tables.values()
            for known in table.partitions
        )

    async def close(self) -> None:
        tasks = [*self._tasks, *([] if self._flushing is None else [self._flushing])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Reporting.

    async def _register(self) -> None:
        registration = self._registration
        await self._meta.register(
            self.node,
            registration.addresses,
            failure_domain=registration.failure_domain,
            run=self._store.boot,
        )

    async def _send_heartbeats(self) -> None:
        while True:
            await self._pause()
            try:
                await self._heartbeat()
            except (NotFound, Conflict) as error:
                self._note(error.message)
                await self._register_again()
            except RaftwoodError as error:
                self._note(error.message)
                await asyncio.sleep(_PAUSE.delay_s(0, self._environment.random))

    async def _register_again(self) -> None:
        try:
            await self._register()
        except RaftwoodError as error:
            self._note(error.message)
            await asyncio.sleep(_PAUSE.delay_s(0, self._environment.random))
        else:
            self._is_due.set()

    async def _pause(self) -> None:
        is_urgent = self._is_leaving or self._is_handing_over()
        wait_ms = _HANDOVER_MS if is_urgent else self._heartbeat_ms
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._is_due.wait()
        except TimeoutError:
            pass
        self._is_due.clear()

    def _is_handing_over(self) -> bool:
        return any(
            known.state is PartitionState.STUCK
            and (
                self.node in (known.master, known.target)
                or (known.is_splitting and self.node in known.slaves)
            )
            for table in self._view.topology.tables.values()
            for known in table.partitions
        )

    async def _heartbeat(self) -> None:
        asked_ns, seen_epoch = self._environment.clock.monotonic_ns(), self._store.epoch
        heartbeat = NodeHeartbeat(
            self.node,
            self._store.boot,
            self.applied_epoch,
            self._offsets(),
            self._moment,
            is_leaving=self._is_leaving,
        )
        lease = await self._meta.heartbeat(heartbeat, timeout_ms=self._timeout_ms)
        self._moment = lease.moment
        if lease.delta.epoch < seen_epoch:
            # An older meta server may not know tables that this node has: do not drop them.
            raise Unavailable(
                f"the meta server is at epoch {lease.delta.epoch}, and this node has seen "
                f"{seen_epoch}: nothing is served or removed; give the meta server its state back, "
                "or the node another data folder"
            )
        self._heartbeat_ms = lease.heartbeat_ms
        if self._mendable(self._view.topology):
            self._is_unfinished = True
        await self._apply(lease.delta)
        self._replicator.renew_lease(
            asked_ns=asked_ns, length_ms=lease.lease_ms, epoch=lease.delta.epoch
        )
        self._view.lease_changed()
        self._note("")

    def _offsets(self) -> tuple[ReplicaOffset, ...]:
        offsets = []
        for partition, replica in self._replicator.replicas.items():
            if replica.store.repairing == LOST:
                continue  # an unusable store counts like one that is not open
            report = replica.report()
            offsets.append(
                ReplicaOffset(
                    partition.incarnation,
                    partition.number,
                    report.position.epoch,
                    report.position.sequence,
                    report.lag_bytes,
                    report.contact_ms,
                    report.is_whole,
                    report.is_streaming,
                    report.copied_bytes,
                    report.copy_bytes,
                    report.gap,
                )
            )
        return tuple(offsets)

    def _note(self, refusal: str) -> None:
        if refusal and refusal != self._refusal:
            _log.warning("no word from the meta server", node=self.node, reason=refusal)
        self._refusal = refusal

    # Applying.

    async def _watch(self) -> None:
        while True:
            try:
                async for delta in self._meta.watch(self._view.topology.epoch):
                    await self._apply(delta)
            except RaftwoodError as error:
                _log.warning("the watch begins anew", node=self.node, reason=error.message)
                await asyncio.sleep(_PAUSE.delay_s(0, self._environment.random))

    async def _apply(self, delta: Delta) -> None:
        async with self._changing:
            known = self._view.topology
            topology = applied(known, delta)
            if topology is not known:
                await self._become(topology)
            elif self._is_unfinished:
                await self._use()

    async def _become(self, topology: Topology) -> None:
        wanted = _partitions_of(self.node, topology)
        stays = {each: store for each, store in self._stores.items() if each in wanted}
        if len(stays) < len(self._stores):
            # Replicas stop using stores before the stores are removed.
            await self._replicator.apply(self._view.topology, stays)
            self._stores = stays
        self._unusable = {each: why for each, why in self._unusable.items() if each in wanted}
        self._damaged = {each: None for each in self._damaged if each in wanted}
        tables = {each: name for each, (name, _) in wanted.items()}
        # Split partitions before the parent moves on to another epoch.
        splits = {each: split for each, split in _splits(topology).items() if each in wanted}
        self._unusable |= await self._store.hold(tables, epoch=topology.epoch, splits=splits)
        held = self._store.held()
        await self._open([each for each in splits if each in held and each not in self._stores])
        self._view.learn(topology, self._replicator.replicas)
        await self._use()

    async def _use(self) -> None:
        """Applies the topology to all open partitions."""
        self._is_unfinished = True
        topology = self._view.topology
        await self._begin_damaged_anew(topology)
        wanted = _partitions_of(self.node, topology)
        shares = {
            PartitionId(table.incarnation, number): share
            for table in topology.tables.values()
            for number, share in shares_of(table).items()
        }
        for partition, store in self._stores.items():
            store.ack = wanted[partition][1].ack
            store.own(shares.get(partition))
        await self._replicator.apply(topology, self._stores)
        self._view.learn(topology, self._replicator.replicas)
        self._is_unfinished = False
        self._prepare_splits()
        if self._missing():
            self._is_missing.set()
        elif self.applied_epoch != topology.epoch:
            self.applied_epoch = topology.epoch
            self._is_due.set()

    def _mendable(self, topology: Topology) -> list[PartitionId]:
        """Returns the partitions with bad data here that another node leads.

        Only these: if this node leads a partition, or no node does, the bad data may be the best
        copy, and an operator may want to look at it.
        """
        found = [each for each, store in self._stores.items() if store.engine.damage is not None]
        if not (found or self._damaged):
            return []
        others = {
            PartitionId(table.incarnation, number)
            for table in topology.tables.values()
            for number, known in enumerate(table.partitions)
            if known.master is not None and known.master != self.node
        }
        return [each for each in (*self._damaged, *found) if each in others]

    async def _begin_damaged_anew(self, topology: Topology) -> None:
        mendable = self._mendable(topology)
        if any(each in self._stores for each in mendable):
            # Replicas stop using stores before the stores are replaced.
            for partition in mendable:
                self._stores.pop(partition, None)
            await self._replicator.apply(topology, self._stores)
        for partition in mendable:
            _log.warning("bad data is taken anew from the master", partition=partition)
            self._stores[partition] = await self._store.begin_anew(partition)
            self._unusable.pop(partition, None)
            self._damaged.pop(partition, None)

    def _prepare_splits(self) -> None:
        """Flushes the engine of a partition that is about to split, so that its copy is quick."""
        stores = [
            self._stores[partition]
            for table in self._view.topology.tables.values()
            if table.is_doubling
            for number, known in enumerate(table.partitions)
            if known.is_splitting
            and (partition := PartitionId(table.incarnation, number)) in self._stores
        ]
        if stores and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.get_running_loop().create_task(_flush(stores))

    def _missing(self) -> list[PartitionId]:
        return [
            each
            for each in self._store.held()
            if each not in self._stores and each not in self._unusable
        ]

    async def _open_missing(self) -> None:
        """Opens missing partitions, some at a time, so that heartbeats keep the lease."""
        while True:
            await self._is_missing.wait()
            self._is_missing.clear()
            try:
                async with self._changing:
                    await self._open(self._missing()[:_OPENED_AT_ONCE])
                    await self._use()
            except RaftwoodError as error:
                # The next heartbeat's answer retries.
                _log.warning("not all is used yet", node=self.node, reason=error.message)

    async def _open(self, partitions: list[PartitionId]) -> None:
        for partition in partitions:
            try:
                self._stores[partition] = await self._store.partition(partition)
            except RaftwoodError as error:
                _log.error("cannot be opened", partition=partition, reason=error.message)
                self._unusable[partition] = error.message
                if isinstance(error, StoreDamaged):
                    self._damaged[partition] = None


def _partitions_of(node: NodeId, topology: Topology) -> dict[PartitionId, tuple[str, TableConfig]]:
    """Returns a node's partitions, with their tables' names and settings."""
    return {
        PartitionId(table.incarnation, number): (table.name, table.config)
        for table in topology.tables.values()
        for number, known in enumerate(table.partitions)
        if node in known.replicas
    }


async def _flush(stores: list[StoredPartition]) -> None:
    for store in stores:
        try:
            await store.engine.flush()
        except RaftwoodError as error:
            _log.info("not flushed before its split", partition=store.name, reason=error.message)


def _splits(topology: Topology) -> dict[PartitionId, Split]:
    """Returns the splits of all tables, by new partition."""
    return {
        PartitionId(table.incarnation, number): Split(
            PartitionId(table.incarnation, each.parent.number),
            BinlogPosition(each.parent.epoch, each.parent.sequence),
            table.slots_of(number),
        )
        for table in topology.tables.values()
        for number, each in enumerate(table.partitions)
        if each.parent is not None
    }
