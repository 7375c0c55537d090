"""This node's replica of one partition: its role, and what clients may do with it.

`ServingLease` bounds how long a master serves without the meta server.
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
    """How long a node may serve as master without the meta server.

    It counts from the moment when the node sent the heartbeat. The server waits longer, counted
    from the heartbeat's arrival, before it makes another node master. Without a lease, a master cut
    off from the meta server but not from its clients continues beside its successor, and the writes
    that it acks are undone later (planted bug "no lease"). An answer renews the lease only once its
    topology is applied: else the node would continue as master of partitions that it no longer has
    (docs/decisions/0018).
    """

    def __init__(self) -> None:
        self.until_ns = 0

    def renew(self, *, asked_ns: int, length_ns: int) -> None:
        self.until_ns = max(self.until_ns, asked_ns + length_ns)

    def is_on(self, now_ns: int) -> bool:
        return now_ns < self.until_ns


# This node's replica of one partition: its role, and what clients may do with it.

_log = get_logger("zeppelin")
_NO_ACKS: Final = Acks(is_immediate=False, count=lambda _: 0)
_NO_ACKS.end()
_ASK_AGAIN_S: Final = 0.02
"""How often the slave asks its master for progress while a client's read waits for a record."""


class ReplicaRole(Enum):
    """A node's part in a partition."""

    NONE = 0
    """The topology names no master, or is not known yet."""
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
    """Called at once when clients may do more or less with a replica."""


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
        """This node should be master and cannot: the meta server has to choose another."""
        self.acks = _NO_ACKS
        """Which writes are done: of this or the last term as master; on a slave, by its present
        master's reports."""
        self._ask_timer: asyncio.TimerHandle | None = None

    # For commands.

    @property
    def role(self) -> ReplicaRole:
        """The role by the topology; a master may not serve yet, see `may_write`."""
        known = self._known
        if known is None or known.master is None:
            return ReplicaRole.NONE
        return ReplicaRole.MASTER if known.master == self._context.node else ReplicaRole.SLAVE

    @property
    def master(self) -> NodeId | None:
        return None if self._known is None else self._known.master

    @property
    def epoch(self) -> int:
        """Epoch of new records; 0 if none may be written."""
        return 0 if self._leading is None else self._leading.epoch

    @property
    def is_leading(self) -> bool:
        """Whether this node believes to be master, under a lease that has not ended."""
        return self._leading is not None and self._may_lead()

    @property
    def may_write(self) -> bool:
        """Whether this replica has the latest values and may be written to.

        During a hand-over it is not. Zeppelin's text refuses writes of a `stuck` partition (section
        2.3, step 5); reads wait here as well. Once this node has reported its position, another may
        become master before this one learns of it, while this one's lease still holds: a read here
        would miss the new master's acked writes
        (`test_a_frozen_partition_is_neither_read_nor_written_before_the_hand_over_is_over`).
        """
        known = self._known
        return known is not None and known.state is not PartitionState.STUCK and self.is_leading

    def read_durably(self, *, is_on: bool) -> None:
        """Sets whether reads wait until the record that they read from is done.

        Without that, a client may see a value that a failover then undoes, and whose writer got an
        error (docs/decisions/0036; planted bug "reads do not wait").
        """
        if is_on != (self.store.last_writes is not None):
            self.store.note_last_writes(is_on=is_on)
            if self._known is not None:
                self._context.changed(self)

    # For the meta server.

    @property
    def is_awaited(self) -> bool:
        """Whether clients wait for this replica's report: at a hand-over or split. The node then
        reports at once, and not with the next heartbeat.
        """
        known = self._known
        return (
            known is not None
            and known.state is PartitionState.STUCK
            and known.target in (None, self._context.node)
        )

    def report(self) -> PartitionReport:
        """Reports this replica's position; a repairing one is not whole and must not be master."""
        store, following = self.store, self._following
        # A master reports its last record, synced or not: frozen, it may still sync it and ack it
        # after this report, and a target with less would lose it. A slave reports what it acks by
        # the table's rule: its master takes that as done, so a failover must find it
        # (`test_a_slave_tells_the_meta_server_all_that_it_acks`).
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
        """The partition's epoch in the topology."""
        return 0 if self._known is None else self._known.epoch

    @property
    def leading(self) -> MasterReplication | None:
        return self._leading

    @property
    def following(self) -> SlaveReplication | None:
        return self._following

    async def become(self, known: Partition) -> None:
        """Applies the topology's present state of this partition."""
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
        """Begins the epoch that the topology gives to this node, once it has a lease.

        Without a lease, the node may have a topology from before it was declared down, and another
        node is master (`test_nobody_is_served_before_the_meta_server_has_answered`).
        """
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
            # Its keys are not of one moment, or this topology is older than its records: a master
            # that wrote under an older epoch would break the order by which binlogs are compared.
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
            # The disk refuses writes now; the next lease tries again
            # (`test_a_master_whose_disk_takes_nothing_says_that_it_cannot_lead`).
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
        """Takes the master's answer to a standing: how far it lags, None if the master sends
        nothing; the gap between the two; and up to which record all is done, None from a master of
        release 0.1.0: then everything in the standing counts as done.
        """
        if self._following is None or not self._following.answered(standing, lag_bytes, gap):
            return
        done = standing.reached.memory if done is None else done
        if done > self.acks.reached:
            self.acks.reach(done)
        if self.acks.is_awaited and self._ask_timer is None:
            self._ask_timer = asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_master)

    def _begin_acks_of_slave(self) -> None:
        """Begins to count done records anew: a former master counted its own records, and this one
        may have others under the same numbers.
        """
        before = self.acks
        self.acks = Acks(is_immediate=False, count=lambda _: 0, asked=self._ask_master)
        self._context.changed(self)
        before.end()

    def _replacing(self, is_beginning: bool) -> None:
        """Ends the waits of reads while the store is rewound or replaced.

        That may undo the record that a read waits for and give its number to another record: the
        read would then answer with a value that never was (docs/decisions/0036; planted bug "what
        was read outlasts a rewind").
        """
        if is_beginning:
            self.acks.end()
        elif self.role is ReplicaRole.SLAVE:
            self._begin_acks_of_slave()

    def _ask_master(self) -> None:
        """Asks the master which records are done, at the end of this turn of the loop."""
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
        # Stop writes first: clients resend requests that fail by this end at once, and this node
        # would write them again.
        self._context.changed(self)
        if leading is not None:
            leading.end(handed_to=handed_to)

    def _handed_to(self, before: Partition | None, known: Partition) -> NodeId | None:
        """Returns the new master if a hand-over gave it everything that was written here; None: it
        may lack some.
        """
        if before is None or before.state is not PartitionState.STUCK:
            return None
        is_target = before.target is not None and before.target == known.master
        # A failover during the freeze looks the same, except for the old master's mark: then writes
        # here must not count as done.
        is_marked = self._context.node in known.lagging
        is_slave = self._context.node in known.slaves
        return known.master if is_target and is_slave and not is_marked else None

    def _may_lead(self) -> bool:
        return self.config.on_meta_loss == "serve" or self._context.has_lease()
