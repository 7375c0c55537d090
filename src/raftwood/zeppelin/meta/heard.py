"""`Reign`: what nodes told a leader since it leads. Never replicated: a new leader hears it anew.

Times are of the leader's own monotonic clock.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Final

import msgspec

from raftwood.zeppelin.meta.catch_up import CatchUp
from raftwood.zeppelin.meta.queue import Queue
from raftwood.zeppelin.model import (
    EPOCH_NONE,
    Gap,
    Node,
    NodeId,
    Partition,
    PartitionId,
    PartitionState,
    Table,
    Topology,
)

PAUSE_MS_FIRST: Final = 1_000
PAUSE_KNOWN_MS: Final = 60_000


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
    is_streaming: bool = False
    """Of a slave: its master sends it records as they come; it is not amid a copy, nor before it
    has found where to go on."""
    copied_bytes: int = 0
    """Of a whole copy that is under way to it: so much has come."""
    copy_bytes: int = 0
    """Of so much; 0: none is under way."""
    gap: Gap | None = None
    """Of a slave: what was between it and its master when that was heard last; None: nobody told,
    as nodes of 0.1.0 do not."""

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
    state: PartitionState
    state_ms: int


class Pause(msgspec.Struct, frozen=True):
    """A partition is left alone for a while."""

    until_ms: int
    length_ms: int


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
        self.pauses: dict[PartitionId, Pause] = {}
        """Those that are over are remembered for a while, since the next one is longer."""
        self.catch_ups: dict[PartitionId, CatchUp] = {}
        """Of partitions that move."""
        self.queue = Queue()
        self.stuck: dict[PartitionId, Partition] = {}
        """Partitions whose writes wait."""
        self.has_news_of_stuck = False
        """Since the last plan something was told that writes may wait for."""
        self._topology: Topology | None = None

    def is_paused(self, key: PartitionId, now_ms: int) -> bool:
        return key in self.pauses and self.pauses[key].until_ms > now_ms

    def pause(self, key: PartitionId, length_ms: int, now_ms: int) -> None:
        self.pauses[key] = Pause(now_ms + length_ms, length_ms)

    def pause_longer(self, key: PartitionId, length_ms_max: int, now_ms: int) -> None:
        """Shortly at first, since it may have been chance, and each time twice as long."""
        last = self.pauses.get(key)
        length_ms = PAUSE_MS_FIRST if last is None else 2 * last.length_ms
        self.pause(key, min(length_ms, length_ms_max), now_ms)

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
        offsets = {each.id: each for each in heartbeat.offsets}
        self.has_news_of_stuck |= self._tells_of_stuck(heartbeat, offsets, heard)
        heard.at_ms, heard.is_heard, heard.after_ms = now_ms, True, after_ms
        heard.applied_epoch, heard.is_leaving = heartbeat.applied_epoch, heartbeat.is_leaving
        heard.offsets = offsets
        for key, offset in heard.offsets.items():
            if offset.contact_ms is None or after_ms is None or key not in self.seen:
                continue
            # A contact with the master before does not count for the present one.
            if heartbeat.applied_epoch >= self.seen[key].master_epoch:
                contact_ms = after_ms - offset.contact_ms
                heard.contacts[key] = max(contact_ms, heard.contacts.get(key, contact_ms))
        return True

    def _tells_of_stuck(
        self, heartbeat: Heartbeat, offsets: Mapping[PartitionId, Offset], before: Heard
    ) -> bool:
        """Whether a node has come further with a partition whose writes wait."""
        for key, partition in self.stuck.items():
            if heartbeat.node not in partition.replicas:
                continue
            if before.applied_epoch < partition.epoch <= heartbeat.applied_epoch:
                return True
            told, known = offsets.get(key), before.offsets.get(key)
            if told is not None and (known is None or told.position != known.position):
                return True
        return False

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
        self.pauses = {
            key: pause
            for key, pause in self.pauses.items()
            if pause.until_ms + PAUSE_KNOWN_MS > now_ms and key in self.seen
        }

    def _note_tables(
        self, before: Mapping[str, Table], after: Mapping[str, Table], now_ms: int
    ) -> None:
        """What a change leaves alone is the same object in both, and there may be a lot of it."""
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

    def _noted_node(self, node: Node, now_ms: int) -> Heard:
        heard = self.nodes.get(node.id)
        if heard is None or heard.run != node.run:
            contacts = heard.contacts if heard is not None else {}
            return Heard(node.run, now_ms, contacts=contacts)
        return heard

    def _noted_partition(self, key: PartitionId, partition: Partition, now_ms: int) -> Seen:
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
        return Seen(epoch, now_ms, partition.master, epoch, now_ms, partition.state, state_ms)

    def _forget(self, key: PartitionId) -> None:
        del self.seen[key]
        self.catch_ups.pop(key, None)
        self.queue.forget(key)
        self.stuck.pop(key, None)
