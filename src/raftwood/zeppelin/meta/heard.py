"""`Reign`: what nodes told a leader since it leads. Never replicated: a new leader hears it anew.

Times are of the leader's own monotonic clock.
"""

from collections.abc import Mapping
from itertools import zip_longest

import msgspec

from raftwood.zeppelin.model import (
    EPOCH_NONE,
    Node,
    NodeId,
    Partition,
    PartitionId,
    Table,
    Topology,
)


class Offset(msgspec.Struct, frozen=True, array_like=True):
    """How far a node's replica of a partition is."""

    incarnation: int
    partition: int
    epoch: int
    """Of the last record of its binlog; 0 where there is none."""
    sequence: int
    lag_bytes: int = 0
    """Of a slave: how far its master was ahead when it was heard last; 0 once it is master."""
    contact_ms: int | None = None
    """Of a slave: so long ago it heard from the master that it follows; None: not yet."""
    is_candidate: bool = True
    """False while its data is no state that a master has had: amid a full sync, or before it has
    come past the point at which a divergence was undone."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.incarnation, self.partition)

    @property
    def position(self) -> tuple[int, int]:
        """The higher, the more a replica has."""
        return self.epoch, self.sequence


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """When a leader answered, by its own clock; means nothing to the leader of another term."""

    term: int
    at_ms: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """What a node tells: everything that it has, as it is at one moment.

    Offsets are those at `applied_epoch`: a master that tells of a partition at an epoch at which
    that is stuck takes no writes for it any more. Partitions that are left out are not there, or
    cannot be opened.
    """

    node: NodeId
    run: int
    applied_epoch: int
    offsets: tuple[Offset, ...] = ()
    after: Moment | None = None
    """`Lease.moment` of the last answer that this node had before it looked at its offsets: so
    much is known of when that was, however long this is on its way. None: it had none yet."""
    is_leaving: bool = False
    """It is about to stop: what it is the master of is to go to others."""


class Heard(msgspec.Struct):
    """What is known of one node."""

    run: int
    at_ms: int
    """When it told something last; before the first time, when this leader learnt of its run."""
    is_heard: bool = False
    after_ms: int | None = None
    """What it told last it saw after this moment; None: nobody knows when."""
    is_leaving: bool = False
    applied_epoch: int = EPOCH_NONE
    offsets: dict[PartitionId, Offset] = {}
    contacts: dict[PartitionId, int] = {}
    """When its replicas were in contact with their present masters; kept over its restarts."""


class Seen(msgspec.Struct):
    """Since when a leader has seen a partition as it is."""

    epoch: int
    epoch_ms: int
    master: NodeId | None
    master_epoch: int
    master_ms: int


class Reign:
    """One leader's time in one term."""

    def __init__(self, term: int, now_ms: int) -> None:
        self.term = term
        self.began_ms = now_ms
        self.nodes: dict[NodeId, Heard] = {}
        self.seen: dict[PartitionId, Seen] = {}
        self.condemned: dict[NodeId, int] = {}
        """Nodes, and their runs, that are about to be declared down: from the decision until it is
        applied they get no lease and are not heard, else two masters could serve at once."""
        self.handover_begun_ms = -(1 << 60)
        self.looked_at = 0
        """Which partition the next plan looks at first."""
        self.paused_until_ms: dict[PartitionId, int] = {}
        self._topology: Topology | None = None

    def begun_anew(self, now_ms: int) -> "Reign":
        """Nothing was heard yet; what was decided may still come about."""
        anew = Reign(self.term, now_ms)
        anew.condemned = self.condemned
        return anew

    def hear(self, heartbeat: Heartbeat, now_ms: int) -> bool:
        """Take a heartbeat in; False where nothing that the node says counts now."""
        heard = self.nodes.get(heartbeat.node)
        if heard is None or heard.run != heartbeat.run or heartbeat.node in self.condemned:
            return False
        after_ms = self._after_ms(heartbeat)
        if heard.after_ms is not None and (after_ms is None or after_ms < heard.after_ms):
            return False  # a later one has overtaken it
        heard.at_ms, heard.is_heard, heard.after_ms = now_ms, True, after_ms
        heard.applied_epoch, heard.is_leaving = heartbeat.applied_epoch, heartbeat.is_leaving
        heard.offsets = {each.id: each for each in heartbeat.offsets}
        for key, offset in heard.offsets.items():
            if offset.contact_ms is None or after_ms is None or key not in self.seen:
                continue
            # A contact with the master before does not count for the present one.
            if heartbeat.applied_epoch >= self.seen[key].master_epoch:
                contact_ms = after_ms - offset.contact_ms
                heard.contacts[key] = max(contact_ms, heard.contacts.get(key, contact_ms))
        return True

    def _after_ms(self, heartbeat: Heartbeat) -> int | None:
        after = heartbeat.after
        return None if after is None or after.term != self.term else after.at_ms

    def note(self, topology: Topology, now_ms: int) -> None:
        """See what has changed in the topology since the last time."""
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
        self.paused_until_ms = {
            key: until_ms
            for key, until_ms in self.paused_until_ms.items()
            if until_ms > now_ms and key in self.seen
        }

    def _note_tables(
        self, before: Mapping[str, Table], after: Mapping[str, Table], now_ms: int
    ) -> None:
        """What a change leaves alone is the same object in both, and there may be a lot of it."""
        for name, old in before.items():
            if name not in after or after[name].incarnation != old.incarnation:
                for number in range(len(old.partitions)):
                    del self.seen[PartitionId(old.incarnation, number)]
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

    def _noted_node(self, node: Node, now_ms: int) -> Heard:
        heard = self.nodes.get(node.id)
        if heard is None or heard.run != node.run:
            contacts = heard.contacts if heard is not None else {}
            return Heard(node.run, now_ms, contacts=contacts)
        return heard

    def _noted_partition(self, key: PartitionId, partition: Partition, now_ms: int) -> Seen:
        seen = self.seen.get(key)
        if seen is not None and seen.epoch == partition.epoch:
            return seen
        if seen is not None and seen.master == partition.master:
            return msgspec.structs.replace(seen, epoch=partition.epoch, epoch_ms=now_ms)
        for heard in self.nodes.values():
            heard.contacts.pop(key, None)
        return Seen(partition.epoch, now_ms, partition.master, partition.epoch, now_ms)
