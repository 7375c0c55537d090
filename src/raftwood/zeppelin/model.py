"""What meta, nodes and clients know of one another: tables, partitions, nodes.

Everything here is a value: the meta server's rules make new ones, and all others copy them.
"""

from enum import StrEnum
from functools import cached_property
from typing import Final, Literal, NamedTuple, NewType

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.names import checked_name
from raftwood.zeppelin.slots import PARTITIONS_MAX, place_of_slot, slots_of_place

NodeId = NewType("NodeId", str)
"""Chosen by a node once and kept in its folder; its addresses may change."""
EPOCH_NONE: Final = -2
"""Before the meta server has heard of anything."""
EPOCH_NO_TABLE: Final = -1
REPLICAS_MAX: Final = 7

Ack = Literal["memory", "written", "synced"]
"""When the master says that a write is done: it can be read, the operating system has its binlog,
or the disk has."""
OnMetaLoss = Literal["stop", "serve"]
"""What a master does that has not heard from the meta server for as long as its lease is."""


Reads = Literal["durable", "latest"]
"""What a read tells: what is done as the table's writes are, waiting for that, or what there is."""


class PartitionState(StrEnum):
    """What clients may do; all but `active` belong to a hand-over, and `stuck` lets them wait."""

    ACTIVE = "active"
    SLOWDOWN = "slowdown"
    STUCK = "stuck"


class PartitionId(NamedTuple):
    """A partition of one table for ever: a table that is made anew has others."""

    incarnation: int
    """Of the table."""
    number: int


class TableConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is chosen when a table is made."""

    partitions: int = 16
    """So many there are, or are to be while the table doubles."""
    replicas: int = 3
    """The master and its slaves."""
    ack: Ack = "written"
    min_replicas: int = 1
    """So many have a write before it is acked, the master among them."""
    on_meta_loss: OnMetaLoss = "stop"
    lag_max_bytes: int = 64 << 20
    """A slave that is further behind does not become master by itself."""

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
    """What is between a slave and its master, as far as a hand-over has to wait for it."""

    queued_bytes: int
    """Beyond what the link between them holds: however far they are from each other, that much is
    always under way."""
    drain_ms: int
    """About how long it takes until the slave has everything, if nothing is written by then."""

    def is_within(self, most: "Gap") -> bool:
        return self.queued_bytes <= most.queued_bytes and self.drain_ms <= most.drain_ms


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """A replica goes from one node to another. How far it is, its partition tells: the target is a
    slave or not yet, is frozen for or not, is master; so whoever leads next goes on from there.
    """

    source: NodeId
    target: NodeId
    plan: int
    """The epoch in which it was ordered: all that was ordered together has the same."""
    of: int = 1
    """So many were ordered together."""


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition was split off, and the last record of that which is its own as well."""

    number: int
    epoch: int
    """Of the record, as in binlogs."""
    sequence: int


class Partition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has it. Its epoch is its own: it goes up when this partition changes, and never else."""

    epoch: int
    master: NodeId | None
    """None: nobody that may become it is up."""
    slaves: tuple[NodeId, ...] = ()
    preferred: NodeId | None = None
    """Where it was placed first; it becomes master again by a safe hand-over."""
    state: PartitionState = PartitionState.ACTIVE
    target: NodeId | None = None
    """The slave that becomes master by the hand-over that is under way."""
    lagging: tuple[NodeId, ...] = ()
    """Slaves that have missed too much to become master by themselves."""
    unproven: tuple[NodeId, ...] = ()
    """Slaves that may lack writes which were acked by a replica that is none any more: until they
    have shown that they do not, they count for nothing where a master is chosen."""
    migration: Migration | None = None
    """Under way, or waiting for its turn."""
    migrations_next: tuple[Migration, ...] = ()
    """Ordered together with it: a partition moves one replica after the other."""
    parent: Parent | None = None
    """None: it was there when the table was made."""
    is_splitting: bool = False
    """It is stuck because half of its slots are about to be another partition's."""

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """The master first, if there is one."""
        return self.slaves if self.master is None else (self.master, *self.slaves)

    @property
    def is_moving(self) -> bool:
        """Whether a migration has begun: its target is a replica, and its source still is."""
        moved = self.migration
        return moved is not None and (moved.target in self.slaves or moved.target == self.master)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """The one that is under way, and those that come after it."""
        return () if self.migration is None else (self.migration, *self.migrations_next)


class Table(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A table; one that is dropped and made anew has another incarnation.

    Its slots are divided evenly among places. Where it was never doubled, each place is that of the
    partition with the same number. It doubles by having twice as many places: each partition stands
    at two neighbouring ones at first, and then a new partition is split off for the second.
    """

    name: str
    incarnation: int
    """The epoch that it was made in: no two tables ever have the same."""
    config: TableConfig
    partitions: tuple[Partition, ...]
    reads: Reads | msgspec.UnsetType = msgspec.UNSET
    """Unset: durable where a write waits for other replicas. It stands here and not in what was
    chosen when the table was made: nodes of 0.1.0 pass over it, and tell the latest."""

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
        """Those of each partition, by its number."""
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
    """Each for its own kind of caller, `HOST:PORT`."""

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
    """Another one after each start of its process: what it had in memory is gone then."""
    is_draining: bool = False
    """It is to be emptied, and gets nothing new."""


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use a table: clients log in by it, and so choose the table."""

    name: str
    table: str
    password_hash: str
    may_write: bool = True


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one epoch."""

    epoch: int = EPOCH_NONE
    tables: dict[str, Table] = {}
    nodes: dict[NodeId, NodeInfo] = {}
    users: dict[str, User] = {}


def checked_table_name(name: str) -> str:
    return checked_name("table", name)
