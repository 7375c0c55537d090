"""What meta, nodes and clients know of one another: tables, partitions, nodes.

Everything here is a value: the meta server's rules make new ones, and all others copy them.
"""

from enum import StrEnum
from typing import Final, Literal, NamedTuple, NewType

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.names import checked_name
from raftwood.zeppelin.slots import PARTITIONS_MAX, partition_of_slot, slots_of_partition

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


class Partition(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        """The master first, if there is one."""
        return self.slaves if self.master is None else (self.master, *self.slaves)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table; one that is dropped and made anew has another incarnation."""

    name: str
    incarnation: int
    """The epoch that it was made in: no two tables ever have the same."""
    config: TableConfig
    partitions: tuple[Partition, ...]

    def partition_of_slot(self, slot: int) -> int:
        return partition_of_slot(slot, len(self.partitions))

    def slots_of(self, partition: int) -> range:
        return slots_of_partition(partition, len(self.partitions))


class NodeAddresses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each for its own kind of caller, `HOST:PORT`."""

    data: str
    """For clients of Redis."""
    replication: str
    admin: str


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the meta server knows it."""

    id: NodeId
    addresses: NodeAddresses
    failure_domain: str = ""
    is_up: bool = False
    run: int = 0
    """Another one after each start of its process: what it had in memory is gone then."""


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
    nodes: dict[NodeId, Node] = {}
    users: dict[str, User] = {}


def checked_table_name(name: str) -> str:
    return checked_name("table", name)
