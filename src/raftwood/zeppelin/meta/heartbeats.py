"""Heartbeats of nodes, and what the meta server's leader learns from them.

`LeaderTerm` holds the nodes' reports of one leader's term, `PlanningView` what a plan sees.
Heartbeats carry offsets and times, as in Zeppelin's text (sections 1.2 and 2.1), and are never
replicated: they change all the time. Two dangers follow. A new leader knows nothing, and must not
take silence from before its term for death. And a message describes the moment when the node
looked, not when it arrives. The rules below are about these two (docs/decisions/0018).

`MigrationQueue` holds the migrations that have not begun, sorted by the epochs of their orders.
There may be one for each partition, so a plan looks at some of them: at the head, and if none of
these can begin, the next plan looks further behind
(`test_those_that_cannot_begin_hold_up_nobody_behind_them`).
"""

from collections.abc import Mapping
from functools import cached_property
from itertools import zip_longest
from typing import Final

import msgspec

from raftwood.zeppelin.meta.placement import masters_by_node
from raftwood.zeppelin.model import (
    EPOCH_NONE,
    Gap,
    NodeId,
    NodeInfo,
    Partition,
    PartitionId,
    PartitionState,
    Table,
    Topology,
)
from raftwood.zeppelin.settings import ZeppelinMetaSettings

QUEUE_LOOKED_AT_MAX: Final = 1_000


class MigrationQueue:
    """The migrations that wait; the leader calls `note` for each partition that has changed."""

    def __init__(self) -> None:
        self._orders: dict[PartitionId, tuple[int, PartitionId, str]] = {}
        """For each partition: the epoch of the order, the partition, and its table."""
        self._sorted: list[tuple[int, PartitionId, str]] | None = None
        self._begin = 0

    def note(self, key: PartitionId, table: str, partition: Partition) -> None:
        if partition.migration is None or partition.is_moving:
            self.forget(key)
            return
        order = (partition.migration.plan, key, table)
        if self._orders.get(key) != order:
            self._orders[key] = order
            self._sorted = None

    def forget(self, key: PartitionId) -> None:
        if self._orders.pop(key, None) is not None:
            self._sorted = None

    def look(self) -> list[tuple[str, int]]:
        """Returns the next migrations to look at: tables, and numbers of partitions."""
        if self._sorted is None:
            self._sorted = sorted(self._orders.values())
            self._begin = 0
        looked_at = self._sorted[self._begin : self._begin + QUEUE_LOOKED_AT_MAX]
        self._begin += QUEUE_LOOKED_AT_MAX
        if self._begin >= len(self._sorted):
            self._begin = 0
        return [(table, key.number) for _, key, table in looked_at]


# `CatchUp`: whether a slave that receives its master's stream will ever catch up.


class CatchUp(msgspec.Struct):
    """How the lag of a migration's target shrinks, in equal spans of time.

    The least lag of each span counts: single figures go up and down with each answer, so a target
    that catches up would seem not to.
    """

    target: NodeId
    master_epoch: int
    """The epoch of the master that it follows: its lag behind another master proves nothing."""
    began_ms: int
    """When this span began."""
    least: int | None = None
    least_before: int | None = None
    """The least lag in the span before this one."""

    def tell(self, lag_bytes: int, *, after_ms: int) -> None:
        """Notes a lag, unless it may be from before this span; `after_ms` as in `KnownNode`."""
        if after_ms >= self.began_ms:
            self.least = lag_bytes if self.least is None else min(self.least, lag_bytes)

    def is_failing(self, *, now_ms: int, span_ms: int, catch_up_ms_max: int) -> bool:
        """True at the end of a span with so little progress that the rest would take too long."""
        if now_ms - self.began_ms < span_ms:
            return False
        least, before = self.least, self.least_before
        self.began_ms, self.least, self.least_before = now_ms, None, least
        if least is None or before is None:
            return False
        return (before - least) * catch_up_ms_max < least * span_ms


# `LeaderTerm`: the nodes' reports to a leader. Never replicated: a new leader collects them anew.
#
# Times are of the leader's own monotonic clock.

PAUSE_MS_FIRST: Final = 1_000
PAUSE_KNOWN_MS: Final = 60_000


class ReplicaOffset(msgspec.Struct, frozen=True, array_like=True):
    """The position and state of a node's replica of a partition."""

    incarnation: int
    partition: int
    epoch: int
    """Epoch of the last record of its binlog; 0: there is no record."""
    sequence: int
    lag_bytes: int = 0
    """On a slave: how far the master was ahead in its last message; 0 once it is master."""
    contact_ms: int | None = None
    """On a slave: time since its present master's last message; None: none yet."""
    is_candidate: bool = True
    """False while its data was never a master's state: during a full sync, or before it has passed
    the point at which a divergence was undone."""
    is_streaming: bool = False
    """On a slave: its master streams new records to it; it neither copies nor seeks its start."""
    copied_bytes: int = 0
    """Bytes received of a running whole copy."""
    copy_bytes: int = 0
    """Size of the running whole copy; 0: none is running."""
    gap: Gap | None = None
    """On a slave: the gap in the master's last message; None: none, as from nodes of 0.1.0."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.incarnation, self.partition)

    @property
    def position(self) -> tuple[int, int]:
        """The larger, the more records a replica has."""
        return self.epoch, self.sequence


class LeaderMoment(msgspec.Struct, frozen=True, array_like=True):
    """When a leader answered, by its own clock; has no meaning for the leader of another term."""

    term: int
    at_ms: int


class NodeHeartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """A node's report of all its partitions, as of one moment.

    Offsets hold at `applied_epoch`: a master that reports a partition at an epoch in which it is
    stuck no longer takes writes for it. Partitions not listed are absent, or cannot be opened.
    """

    node: NodeId
    run: int
    applied_epoch: int
    offsets: tuple[ReplicaOffset, ...] = ()
    after: LeaderMoment | None = None
    """`LeaseAnswer.moment` of the last answer before the node read its offsets: the offsets are
    later, however long this message travels. None: no answer yet."""
    is_leaving: bool = False
    """The node is about to stop: hand its masters over."""


class KnownNode(msgspec.Struct):
    """The leader's knowledge of one node."""

    run: int
    at_ms: int
    """When the last heartbeat arrived; before the first one, when this leader learned of the run.

    A new leader counts silence from its own beginning. If it counted from the last leader's time,
    which it does not know, it would declare all nodes down at once (planted bug "judges at once";
    `test_a_new_leader_judges_nobody_before_it_has_waited`).
    """
    is_heard: bool = False
    after_ms: int | None = None
    """The node read its offsets after this moment; None: unknown."""
    is_leaving: bool = False
    applied_epoch: int = EPOCH_NONE
    offsets: dict[PartitionId, ReplicaOffset] = {}
    contacts: dict[PartitionId, int] = {}
    """When its replicas last had contact with their present masters; survives its restarts."""


class KnownPartition(msgspec.Struct):
    """When a leader first saw a partition's present epoch, master and state."""

    epoch: int
    epoch_ms: int
    master: NodeId | None
    master_epoch: int
    master_ms: int
    state: PartitionState
    state_ms: int


class PlanningPause(msgspec.Struct, frozen=True):
    """No hand-over, split or slowdown of a partition begins before `until_ms`."""

    until_ms: int
    length_ms: int


class LeaderTerm:
    """A leader's knowledge in one term; each term begins anew.

    The text's lock (section 2.4) lets a leader continue while the lock lasts by the leader's own
    clock, and relies on the leader to stop in time. Here the leader is one of raft, confirmed by a
    quorum for each answer, and whatever an earlier leader granted has ended before this one judges
    (`test_only_the_leader_hears_and_each_term_begins_anew`).
    """

    def __init__(self, term: int, now_ms: int) -> None:
        self.term = term
        self.began_ms = now_ms
        self.nodes: dict[NodeId, KnownNode] = {}
        self.seen: dict[PartitionId, KnownPartition] = {}
        self.condemned: dict[NodeId, int] = {}
        """Nodes, and their runs, that are being declared down: until that is applied, their
        heartbeats do not count and bring no lease, else two masters could serve at once."""
        self.handover_begun_ms = -(1 << 60)
        self.looked_at = 0
        """The partition that the next plan looks at first."""
        self.pauses: dict[PartitionId, PlanningPause] = {}
        """Past pauses stay for a while, because the next one is longer."""
        self.catch_ups: dict[PartitionId, CatchUp] = {}
        """How the targets of moving partitions catch up."""
        self.queue = MigrationQueue()
        self.stuck: dict[PartitionId, Partition] = {}
        """Partitions whose writes wait."""
        self.has_news_of_stuck = False
        """Set when a node reports progress with a partition whose writes wait: the next plan is
        made at once, because clients wait for it
        (`test_a_hand_over_ends_as_soon_as_both_have_told_where_they_are`)."""
        self._topology: Topology | None = None

    def is_paused(self, key: PartitionId, now_ms: int) -> bool:
        return key in self.pauses and self.pauses[key].until_ms > now_ms

    def pause(self, key: PartitionId, length_ms: int, now_ms: int) -> None:
        self.pauses[key] = PlanningPause(now_ms + length_ms, length_ms)

    def pause_longer(self, key: PartitionId, length_ms_max: int, now_ms: int) -> None:
        """Pauses a partition: shortly at first, since the failure may have been chance, then twice
        as long each time.
        """
        last = self.pauses.get(key)
        length_ms = PAUSE_MS_FIRST if last is None else 2 * last.length_ms
        self.pause(key, min(length_ms, length_ms_max), now_ms)

    def begun_anew(self, now_ms: int) -> "LeaderTerm":
        """Returns the same term without any reports.

        Nodes that are being declared down stay so: the proposal may still be applied, and a lease
        that is given meanwhile would outlast it
        (`test_a_node_that_is_being_declared_down_gets_no_lease_however_long_that_takes`).
        """
        anew = LeaderTerm(self.term, now_ms)
        anew.condemned = self.condemned
        return anew

    def hear(self, heartbeat: NodeHeartbeat, now_ms: int) -> bool:
        """Takes a heartbeat in; False where the node's heartbeats do not count now.

        Heartbeats of a node that is being declared down do not count: with a lease it would serve
        beside the master that replaces it
        (`test_a_node_that_is_being_declared_down_gets_no_lease_meanwhile`).
        """
        heard = self.nodes.get(heartbeat.node)
        if heard is None or heard.run != heartbeat.run or heartbeat.node in self.condemned:
            return False
        after_ms = self._after_ms(heartbeat)
        if heard.after_ms is not None and (after_ms is None or after_ms < heard.after_ms):
            # A later heartbeat has overtaken this one, whose offsets are older (planted bug "judged
            # by old heartbeats").
            return False
        offsets = {each.id: each for each in heartbeat.offsets}
        self.has_news_of_stuck |= self._tells_of_stuck(heartbeat, offsets, heard)
        heard.at_ms, heard.is_heard, heard.after_ms = now_ms, True, after_ms
        heard.applied_epoch, heard.is_leaving = heartbeat.applied_epoch, heartbeat.is_leaving
        heard.offsets = offsets
        for key, offset in heard.offsets.items():
            if offset.contact_ms is None or after_ms is None or key not in self.seen:
                continue
            # A contact with the master before does not count for the present one: the slave may
            # follow no master now (`test_a_contact_is_as_old_as_the_word_that_tells_of_it`).
            if heartbeat.applied_epoch >= self.seen[key].master_epoch:
                contact_ms = after_ms - offset.contact_ms
                heard.contacts[key] = max(contact_ms, heard.contacts.get(key, contact_ms))
        return True

    def _tells_of_stuck(
        self,
        heartbeat: NodeHeartbeat,
        offsets: Mapping[PartitionId, ReplicaOffset],
        before: KnownNode,
    ) -> bool:
        """Whether a heartbeat shows progress with a partition whose writes wait."""
        for key, partition in self.stuck.items():
            if heartbeat.node not in partition.replicas:
                continue
            if before.applied_epoch < partition.epoch <= heartbeat.applied_epoch:
                return True
            told, known = offsets.get(key), before.offsets.get(key)
            if told is not None and (known is None or told.position != known.position):
                return True
        return False

    def _after_ms(self, heartbeat: NodeHeartbeat) -> int | None:
        after = heartbeat.after
        return None if after is None or after.term != self.term else after.at_ms

    def note(self, topology: Topology, now_ms: int) -> None:
        """Takes over the topology's changes since the last call."""
        before = self._topology
        if topology is before:
            return
        self._topology = topology
        self.nodes = {
            node: self._noted_node(known, now_ms) for node, known in topology.nodes.items()
        }
        self.condemned = {
            node: run
            for node, run in self.condemned.items()
            if node in topology.nodes
            and topology.nodes[node].is_up
            and topology.nodes[node].run == run
        }
        self._note_tables(before.tables if before is not None else {}, topology.tables, now_ms)
        self.pauses = {
            key: pause
            for key, pause in self.pauses.items()
            if pause.until_ms + PAUSE_KNOWN_MS > now_ms and key in self.seen
        }

    def _note_tables(
        self, before: Mapping[str, Table], after: Mapping[str, Table], now_ms: int
    ) -> None:
        """Takes over changed tables. An unchanged partition is the same object in both topologies;
        there may be 65,536 of them, and most changes touch one."""
        for name, old in before.items():
            if name not in after or after[name].incarnation != old.incarnation:
                for number in range(len(old.partitions)):
                    self._forget(PartitionId(old.incarnation, number))
        for name, table in after.items():
            known = before.get(name)
            if table is known:
                continue
            is_same = known is not None and known.incarnation == table.incarnation
            olds = known.partitions if known is not None and is_same else ()
            for number, (old_one, new) in enumerate(zip_longest(olds, table.partitions)):
                if new is not old_one:
                    key = PartitionId(table.incarnation, number)
                    self.seen[key] = self._noted_partition(key, new, now_ms)
                    self.queue.note(key, name, new)
                    self.stuck.pop(key, None)
                    if new.state is PartitionState.STUCK:
                        self.stuck[key] = new

    def _noted_node(self, node: NodeInfo, now_ms: int) -> KnownNode:
        heard = self.nodes.get(node.id)
        if heard is None or heard.run != node.run:
            contacts = heard.contacts if heard is not None else {}
            return KnownNode(node.run, now_ms, contacts=contacts)
        return heard

    def _noted_partition(
        self, key: PartitionId, partition: Partition, now_ms: int
    ) -> KnownPartition:
        if partition.migration is None:
            self.catch_ups.pop(key, None)
        seen, epoch = self.seen.get(key), partition.epoch
        if seen is not None and seen.epoch == epoch:
            return seen
        is_same = seen is not None and seen.state is partition.state
        state_ms = seen.state_ms if seen is not None and is_same else now_ms
        if seen is not None and seen.master == partition.master:
            return msgspec.structs.replace(
                seen, epoch=epoch, epoch_ms=now_ms, state=partition.state, state_ms=state_ms
            )
        for heard in self.nodes.values():
            heard.contacts.pop(key, None)
        return KnownPartition(
            epoch, now_ms, partition.master, epoch, now_ms, partition.state, state_ms
        )

    def _forget(self, key: PartitionId) -> None:
        del self.seen[key]
        self.catch_ups.pop(key, None)
        self.queue.forget(key)
        self.stuck.pop(key, None)


# `PlanningView`: what a leader's plan sees: the topology, the reports, and the time.


class TablePartition(msgspec.Struct, frozen=True):
    """A partition with its table and number."""

    table: Table
    number: int

    @property
    def partition(self) -> Partition:
        return self.table.partitions[self.number]

    @property
    def key(self) -> PartitionId:
        return PartitionId(self.table.incarnation, self.number)


class PlanningView:
    """The topology, the heartbeats and the time, as one plan sees them."""

    def __init__(
        self, topology: Topology, reign: LeaderTerm, settings: ZeppelinMetaSettings, now_ms: int
    ) -> None:
        self.topology = topology
        self.reign = reign
        self.settings = settings
        self.now_ms = now_ms
        silent = {node for node in topology.nodes if self._is_silent(node)}
        self.downs = [
            node for node, known in topology.nodes.items() if known.is_up and node in silent
        ]
        self.ups = [
            node
            for node, known in topology.nodes.items()
            if not known.is_up and node not in silent and reign.nodes[node].is_heard
        ]
        self._up = {
            node
            for node, known in topology.nodes.items()
            if node not in silent and (known.is_up or node in self.ups)
        }

    def _is_silent(self, node: NodeId) -> bool:
        is_condemned = node in self.reign.condemned
        return is_condemned or self.now_ms - self.heard(node).at_ms >= self.settings.down_ms

    def is_up(self, node: NodeId | None) -> bool:
        """Whether the node is up once the plan is carried out."""
        return node in self._up

    def is_leaving(self, node: NodeId | None) -> bool:
        return node is not None and self.heard(node).is_leaving

    def heard(self, node: NodeId) -> KnownNode:
        return self.reign.nodes[node]

    def seen(self, place: TablePartition) -> KnownPartition:
        return self.reign.seen[place.key]

    def offset(self, node: NodeId, place: TablePartition) -> ReplicaOffset | None:
        """Returns the offset that a node reported for its replica of this very partition.

        By incarnation and number: a table that was dropped and made anew has the same name, and a
        position in the old one would make an empty replica look complete (planted bug "the offset
        of another partition"; `test_offsets_are_those_of_the_partition_itself`).
        """
        return self.heard(node).offsets.get(place.key)

    def missed_ms(self, slave: NodeId, place: TablePartition, master: NodeId) -> int | None:
        """Returns how long the master went on without this slave; None: this leader knows of no
        contact between the two.
        """
        contact_ms = self.heard(slave).contacts.get(place.key)
        return None if contact_ms is None else self.heard(master).at_ms - contact_ms

    @cached_property
    def masters(self) -> "dict[NodeId, int]":
        """The number of masters that each node has or is about to have."""
        counted = masters_by_node(self.topology.tables.values())
        return {node: counted[node] for node in self.topology.nodes}
