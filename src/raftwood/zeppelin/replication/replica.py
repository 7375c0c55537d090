"""This node's replica of one partition: its role, and what clients may do by that.

`ServingLease` is how long a master may go on without the meta server.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.zeppelin.model import Gap, NodeId, Partition, PartitionId, PartitionState, TableConfig
from raftwood.zeppelin.records import Acks, BinlogPosition, PartitionStore
from raftwood.zeppelin.replication.epochs import epoch_at, record_epoch
from raftwood.zeppelin.replication.master import MasterReplication, reached_of
from raftwood.zeppelin.replication.progress import PartitionReport
from raftwood.zeppelin.replication.sender import RecordSender
from raftwood.zeppelin.replication.slave import SlaveContext, SlaveReplication
from raftwood.zeppelin.replication.wire import SlaveStanding


class ServingLease:
    """One node's; it counts from the moment that the question was sent which the server answered.

    The server waits longer than that before it makes another node master. It has to be of a
    topology that this node has applied: else it may be master of less than it believes.
    """

    def __init__(self) -> None:
        self.until_ns = 0

    def renew(self, *, asked_ns: int, length_ns: int) -> None:
        self.until_ns = max(self.until_ns, asked_ns + length_ns)

    def is_on(self, now_ns: int) -> bool:
        return now_ns < self.until_ns


# This node's replica of one partition: what it is there, and what its users may do by that.

_log = get_logger("zeppelin")
_NO_ACKS: Final = Acks(is_immediate=False, count=lambda _: 0)
_NO_ACKS.end()
_ASK_AGAIN_S: Final = 0.02
"""While somebody reads here what is not done yet, the master is asked so often how far it is."""


class ReplicaRole(Enum):
    """What a node is to a partition."""

    NONE = 0
    """It is not known who leads."""
    MASTER = 1
    SLAVE = 2


class ReplicaContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica needs of its node."""

    node: NodeId
    boot: int
    slave_world: SlaveContext
    sender_of: Callable[[NodeId], RecordSender | None]
    has_lease: Callable[[], bool]
    changed: "Callable[[PartitionReplica], None]"
    """Hears at once that what may be done with a replica is something else."""


class PartitionReplica:
    """One partition on this node, for as long as its store is open."""

    def __init__(
        self,
        partition: PartitionId,
        store: PartitionStore,
        config: TableConfig,
        context: ReplicaContext,
    ) -> None:
        self.partition = partition
        self.store = store
        self.config = config
        self._context = context
        self._known: Partition | None = None
        self._leading: MasterReplication | None = None
        self._following: SlaveReplication | None = None
        self._has_failed_to_lead = False
        """It is master and cannot be: another one is to be chosen."""
        self.acks = _NO_ACKS
        """Which writes are done, of this tenure as master or of the last one; of a slave as its
        present master tells it."""
        self._ask_timer: asyncio.TimerHandle | None = None

    # For commands.

    @property
    def role(self) -> ReplicaRole:
        """As the topology says; a master may not be one yet, see `may_write`."""
        known = self._known
        if known is None or known.master is None:
            return ReplicaRole.NONE
        return ReplicaRole.MASTER if known.master == self._context.node else ReplicaRole.SLAVE

    @property
    def master(self) -> NodeId | None:
        return None if self._known is None else self._known.master

    @property
    def epoch(self) -> int:
        """Of the records that are to be written now; 0 where none are."""
        return 0 if self._leading is None else self._leading.epoch

    @property
    def is_leading(self) -> bool:
        """Whether it is master, as far as it knows, by a lease that is on."""
        return self._leading is not None and self._may_lead()

    @property
    def may_write(self) -> bool:
        """Whether what is here is the latest there is, and may be written to.

        While it is handed over it is neither: once this node has told how far it came, another may
        be master before this one hears of it, and its lease may be on for long.
        """
        known = self._known
        return known is not None and known.state is not PartitionState.STUCK and self.is_leading

    def read_durably(self, *, is_on: bool) -> None:
        """Whether reads wait until what they tell is done."""
        if is_on != (self.store.last_writes is not None):
            self.store.note_last_writes(is_on=is_on)
            if self._known is not None:
                self._context.changed(self)

    # For the meta server.

    @property
    def is_awaited(self) -> bool:
        """Whether clients wait for how far it is, as it becomes master then."""
        known = self._known
        return (
            known is not None
            and known.state is PartitionState.STUCK
            and known.target in (None, self._context.node)
        )

    def report(self) -> PartitionReport:
        """How far it is; not whole while it repairs, and then it may not become master."""
        store, following = self.store, self._following
        # A master that is frozen may still call done what it has not synced itself yet; of another
        # replica counts what it acks: that is what must not be lost where its master is.
        is_leading = self._leading is not None
        told = store.last_sequence if is_leading else reached_of(store).by(self.config.ack)
        return PartitionReport(
            position=BinlogPosition(epoch_at(store.epochs, told), told),
            is_whole=store.repairing is None and store.is_well and not self._has_failed_to_lead,
            lag_bytes=0 if following is None else following.lag_bytes,
            contact_ms=None if following is None else following.contact_ms(),
            is_streaming=following is not None and following.is_streaming,
            copied_bytes=0 if following is None else following.copied_bytes,
            copy_bytes=0 if following is None else following.copy_bytes,
            gap=None if following is None else following.gap,
        )

    # For the replicator.

    @property
    def partition_epoch(self) -> int:
        """That of the topology."""
        return 0 if self._known is None else self._known.epoch

    @property
    def leading(self) -> MasterReplication | None:
        return self._leading

    @property
    def following(self) -> SlaveReplication | None:
        return self._following

    async def become(self, known: Partition) -> None:
        """What the topology says of it now."""
        before, self._known = self._known, known
        if before == known:
            return
        self._has_failed_to_lead = False
        if self.role is not ReplicaRole.MASTER:
            self._end_leading(handed_to=self._handed_to(before, known))
        else:
            self._context.changed(self)
        if self.role is not ReplicaRole.SLAVE and self._leading is None:
            self.acks.end()
        elif self.role is ReplicaRole.SLAVE and (before is None or before.master != known.master):
            self._begin_acks_of_slave()
        if self.role is not ReplicaRole.SLAVE and self._following is not None:
            await self._following.end()
            self._following = None
        if self.role is ReplicaRole.SLAVE and known.master is not None:
            if self._following is None:
                self._following = SlaveReplication(
                    self.partition,
                    self.store,
                    self._context.slave_world,
                    replacing=self._replacing,
                )
            self._following.follow(known.master, epoch=known.epoch)
        self.lead_if_due()

    def lead_if_due(self) -> None:
        """Begin the epoch that the topology has given to this node, once it may be used."""
        known = self._known
        if known is None or known.master != self._context.node or self._following is not None:
            return
        epoch = record_epoch(known.epoch, boot=self._context.boot)
        if self._leading is not None and self._leading.epoch >= epoch:
            self._leading.tell()
            return
        if not self._may_lead():
            return
        if self.store.repairing is not None or self.store.epoch >= epoch:
            # Its keys are of no one moment, or this topology is older than its records.
            _log.error("this replica cannot lead", partition=self.partition, epoch=known.epoch)
            self._has_failed_to_lead = True
            return
        leading = self._leading or MasterReplication(
            self.partition,
            self.store,
            self.config,
            sender_of=self._context.sender_of,
            may_tell=self._may_lead,
        )
        try:
            is_slowed = known.state is PartitionState.SLOWDOWN
            leading.begin(epoch, known.slaves, slowed_for=known.target if is_slowed else None)
        except RaftwoodError as error:
            # Its disk takes nothing now; it is tried again with the next lease.
            _log.error("cannot lead now", partition=self.partition, reason=error.message)
            self._has_failed_to_lead = self._leading is None
            if self._leading is None:
                leading.end()
            return
        self._has_failed_to_lead = False
        self._leading, self.acks = leading, leading.acks
        self._context.changed(self)
        leading.moved()

    def answered(
        self, standing: SlaveStanding, lag_bytes: int | None, gap: Gap | None, done: int | None
    ) -> None:
        """What the master says to a standing: how far that is behind, None where it feeds nothing,
        what is between the two, and up to where all is done, None where it does not say: then what
        it has heard of counts.
        """
        if self._following is None or not self._following.answered(standing, lag_bytes, gap):
            return
        done = standing.reached.memory if done is None else done
        if done > self.acks.reached:
            self.acks.reach(done)
        if self.acks.is_awaited and self._ask_timer is None:
            self._ask_timer = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_master)

    def _begin_acks_of_slave(self) -> None:
        """What another master called done was of its own records."""
        before = self.acks
        self.acks = Acks(is_immediate=False, count=lambda _: 0, asked=self._ask_master)
        self._context.changed(self)
        before.end()

    def _replacing(self, is_beginning: bool) -> None:
        """What was read here may be undone by that, and its record's number be another's then."""
        if is_beginning:
            self.acks.end()
        elif self.role is ReplicaRole.SLAVE:
            self._begin_acks_of_slave()

    def _ask_master(self) -> None:
        """How far things are, at the end of this turn of the loop."""
        if self._ask_timer is not None:
            self._ask_timer.cancel()
            self._ask_timer = None
        if self.role is ReplicaRole.SLAVE and self.master is not None and self.acks.is_awaited:
            self._context.slave_world.moved(self.master, self.partition)

    async def end(self) -> None:
        self._known = None
        self._end_leading()
        self.acks.end()
        self._ask_master()
        if self._following is not None:
            await self._following.end()
            self._following = None

    def _end_leading(self, *, handed_to: NodeId | None = None) -> None:
        leading, self._leading = self._leading, None
        # First of all nobody writes any more: those who hear of the end go on with their requests.
        self._context.changed(self)
        if leading is not None:
            leading.end(handed_to=handed_to)

    def _handed_to(self, before: Partition | None, known: Partition) -> NodeId | None:
        """Who is master now because it had all that was written here; None: it may not have."""
        if before is None or before.state is not PartitionState.STUCK:
            return None
        is_target = before.target is not None and before.target == known.master
        # The master before a failover is marked as one that may have more than others.
        is_marked = self._context.node in known.lagging
        is_slave = self._context.node in known.slaves
        return known.master if is_target and is_slave and not is_marked else None

    def _may_lead(self) -> bool:
        return self.config.on_meta_loss == "serve" or self._context.has_lease()
