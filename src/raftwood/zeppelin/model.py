"""Tables, partitions and nodes, as the meta server, nodes and clients exchange them.

Everything here is immutable: the meta server's rules make new values, all others copy them.
"""

from enum import StrEnum
from functools import cached_property
from typing import Final, Literal, NamedTuple, NewType

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.names import checked_name
from raftwood.zeppelin.slots import PARTITIONS_MAX, place_of_slot, slots_of_place

NodeId = NewType("NodeId", str)
"""A node chooses its id once and keeps it in its folder; its addresses may change."""
EPOCH_NONE: Final = -2
"""Epoch before the first topology from the meta server."""
EPOCH_NO_TABLE: Final = -1
REPLICAS_MAX: Final = 7

Ack = Literal["memory", "written", "synced"]
"""When the master acks a write: in memory (it can be read), written (the operating system has its
binlog), or synced (the disk has)."""
OnMetaLoss = Literal["stop", "serve"]
"""What a master does once it has not heard from the meta server for its lease's time."""


Reads = Literal["durable", "latest"]
"""Which values a read returns: durable ones, for which it waits, or the latest ones."""


class PartitionState(StrEnum):
    """What clients may do. All but `active` belong to a hand-over; in `stuck` clients wait."""

    ACTIVE = "active"
    SLOWDOWN = "slowdown"
    STUCK = "stuck"


class PartitionId(NamedTuple):
    """A partition of one table for ever; a table that is made anew has other partitions."""

    incarnation: int
    """The table's incarnation."""
    number: int


class TableConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator chooses when making a table."""

    partitions: int = 16
    """Number of partitions, also while the table is still doubling to it."""
    replicas: int = 3
    """Number of replicas: the master and its slaves."""
    ack: Ack = "written"
    min_replicas: int = 1
    """How many replicas must have a write before its ack, the master included."""
    on_meta_loss: OnMetaLoss = "stop"
    lag_max_bytes: int = 64 << 20
    """A slave that lags further does not become master by itself."""

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"{self.partitions} partitions: give 1 to {PARTITIONS_MAX}")
        if not 1 <= self.replicas <= REPLICAS_MAX:
            raise InvalidInput(f"{self.replicas} replicas: give 1 to {REPLICAS_MAX}")
        if not 1 <= self.min_replicas <= self.replicas:
            raise InvalidInput(
                f"min_replicas is {self.min_replicas}: give 1 to {self.replicas}, the replicas"
            )
        if self.lag_max_bytes < 0:
            raise InvalidInput(f"lag_max_bytes is {self.lag_max_bytes}: give 0 or more")


class Gap(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How far a slave is behind its master, as a hand-over sees it."""

    queued_bytes: int
    """Bytes that wait to be sent, without those on the link, which are always under way."""
    drain_ms: int
    """Estimated time until the slave has everything, if no more writes come."""

    def is_within(self, most: "Gap") -> bool:
        return self.queued_bytes <= most.queued_bytes and self.drain_ms <= most.drain_ms


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """The move of a replica to another node. Its partition shows the progress (the target is a
    slave or not, the partition is frozen or not, the target is master), so a new leader continues
    from there.
    """

    source: NodeId
    target: NodeId
    plan: int
    """Epoch of the order; migrations ordered together share it."""
    of: int = 1
    """How many migrations were ordered together."""


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """The partition that this one was split off, and the last record that both share."""

    number: int
    epoch: int
    """The record's epoch, as in binlogs."""
    sequence: int


class Partition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The replicas of a partition. Its epoch rises when this partition changes, and only then."""

    epoch: int
    master: NodeId | None
    """None: no node that may become master is up."""
    slaves: tuple[NodeId, ...] = ()
    preferred: NodeId | None = None
    """The node that should be master; a safe hand-over makes it master again."""
    state: PartitionState = PartitionState.ACTIVE
    target: NodeId | None = None
    """The slave that the running hand-over makes master."""
    lagging: tuple[NodeId, ...] = ()
    """Slaves that lag too far to become master by themselves."""
    unproven: tuple[NodeId, ...] = ()
    """Slaves that may lack writes acked by a former replica. Elections ignore them until they have
    proved that they lack none."""
    migration: Migration | None = None
    """Running, or waiting for its turn."""
    migrations_next: tuple[Migration, ...] = ()
    """Ordered together with `migration`: a partition moves one replica after the other."""
    parent: Parent | None = None
    """None: the partition exists since the table was made."""
    is_splitting: bool = False
    """Writes wait because half of the slots are moving to a new partition."""

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """All replicas; the master first, if there is one."""
        return self.slaves if self.master is None else (self.master, *self.slaves)

    @property
    def is_moving(self) -> bool:
        """Whether a migration has begun: its target is a replica, and its source still is one."""
        moved = self.migration
        return moved is not None and (moved.target in self.slaves or moved.target == self.master)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """The current migration, then those that wait."""
        return () if self.migration is None else (self.migration, *self.migrations_next)


class Table(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A table; if dropped and made anew, it has another incarnation.

    Its slots are divided evenly among places. Before the first doubling, place N belongs to
    partition N. Doubling gives the table twice as many places: each partition first has two
    neighbouring ones, then a new partition splits off with the second.
    """

    name: str
    incarnation: int
    """Epoch in which it was made; unique among tables."""
    config: TableConfig
    partitions: tuple[Partition, ...]
    reads: Reads | msgspec.UnsetType = msgspec.UNSET
    """Unset: durable if writes wait for other replicas. The field is not part of `config` because
    nodes of 0.1.0, which read the latest values, have to skip it."""

    @property
    def has_durable_reads(self) -> bool:
        is_usual = self.reads is msgspec.UNSET
        return self.config.min_replicas > 1 if is_usual else self.reads == "durable"

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The number of the partition at each place."""
        made = sum(each.parent is None for each in self.partitions)
        places = list(range(made))
        while 0 < len(places) < self.config.partitions:
            split = self.partitions[len(places) : 2 * len(places)]
            seconds = {
                each.parent.number: number
                for number, each in enumerate(split, len(places))
                if each.parent is not None
            }
            places = [number for first in places for number in (first, seconds.get(first, first))]
        return tuple(places)

    @property
    def is_doubling(self) -> bool:
        """Whether partitions are still to be split."""
        return len(self.partitions) < self.config.partitions

    @cached_property
    def slots(self) -> tuple[range, ...]:
        """The slots of each partition, by its number."""
        places = self.places
        found: dict[int, range] = {}
        for place, number in enumerate(places):
            slots = slots_of_place(place, len(places))
            start = found[number].start if number in found else slots.start
            found[number] = range(start, slots.stop)
        return tuple(found[number] for number in range(len(self.partitions)))

    def partition_of_slot(self, slot: int) -> int:
        places = self.places
        return places[place_of_slot(slot, len(places))]

    def slots_of(self, partition: int) -> range:
        return self.slots[partition]


class NodeAddresses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's addresses, `HOST:PORT`, one for each kind of caller."""

    data: str
    """For clients of Redis."""
    replication: str
    admin: str


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as the meta server knows it."""

    id: NodeId
    addresses: NodeAddresses
    failure_domain: str = ""
    is_up: bool = False
    run: int = 0
    """Changes at each start of the process, which loses what the former run had in memory."""
    is_draining: bool = False
    """Its replicas move away, and it gets no new ones."""


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A login for a table: clients log in as a user and so choose the table."""

    name: str
    table: str
    password_hash: str
    may_write: bool = True


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """All tables, nodes and users at one epoch."""

    epoch: int = EPOCH_NONE
    tables: dict[str, Table] = {}
    nodes: dict[NodeId, NodeInfo] = {}
    users: dict[str, User] = {}


def checked_table_name(name: str) -> str:
    return checked_name("table", name)
