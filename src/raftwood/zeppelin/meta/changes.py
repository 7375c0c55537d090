"""Changes of the topology and their results as bytes, which the meta server's group agrees on.

Changes in one batch are one step of the epoch. A planned change names the epoch of the partition
that the plan saw, and is refused once the partition has another epoch. A partition's epoch is that
of the topology at its last change, so a table made anew has none of the old epochs.

Unknown fields are refused: skipping them could fail on one replica and not on another.
"""

from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError, error_class
from raftwood.zeppelin.model import NodeAddresses, NodeId, Reads, TableConfig, User

CHANGES_MAX: Final = 20_000
"""Changes in one batch."""


class AtEpoch(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="at_epoch"
):
    """First change of an all-or-nothing batch. If the topology has changed since the plan, or
    another change of the batch is refused, none is made.
    """

    epoch: int


class CreateTable(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="create_table"
):
    """Creates a table, placed on the nodes that are up."""

    name: str
    config: TableConfig


class DropTable(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="drop_table"
):
    """Drops a table and its users."""

    name: str


class RegisterNode(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="register_node"
):
    """A node has started and is up; each start of its process has a new `run`."""

    id: NodeId
    addresses: NodeAddresses
    failure_domain: str
    run: int


class RemoveNode(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_node"
):
    """Forgets a node that is down and has no partitions."""

    id: NodeId


class NodeUp(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="node_up"
):
    """A node that was down sends heartbeats again."""

    id: NodeId
    run: int


class NodeDown(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="node_down"
):
    """A node was silent for too long; refused if it has started anew since."""

    id: NodeId
    run: int


class ChangeMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="change_master"
):
    """Failover: replaces a master that is down or gone, or leaves none.

    A master that is up but cannot lead may lose its role too.
    """

    table: str
    partition: int
    epoch: int
    master: NodeId | None
    lagging: tuple[NodeId, ...] = ()
    """Slaves that turned out to lag too far."""
    run: int | None = None
    """The run in which the new master reported its position: after a restart it may have less."""


class ForceMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="force_master"
):
    """Makes a replica master of a partition that has none; writes that it lacks are lost."""

    table: str
    partition: int
    node: NodeId


class MarkSlaves(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="mark_slaves"
):
    """Marks the slaves that lag too far."""

    table: str
    partition: int
    epoch: int
    lagging: tuple[NodeId, ...]
    unproven: tuple[NodeId, ...] = ()


class BeginHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin_handover"
):
    """Freezes the master's writes, so that a slave can catch up fully and take over."""

    table: str
    partition: int
    epoch: int
    target: NodeId


class EndHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_handover"
):
    """The target has all of the frozen master's records and becomes master."""

    table: str
    partition: int
    epoch: int


class CancelHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_handover"
):
    """The master continues, at full speed."""

    table: str
    partition: int
    epoch: int


class SetMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_master"
):
    """Makes a slave the preferred master; a hand-over follows."""

    table: str
    partition: int
    node: NodeId


class AddSlave(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_slave"
):
    """Adds a replica, which has to catch up first."""

    table: str
    partition: int
    node: NodeId


class RemoveSlave(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_slave"
):
    """Removes a replica."""

    table: str
    partition: int
    node: NodeId


class Migrate(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="migrate"
):
    """Orders the move of a replica to a node without one; the keeper carries it out.

    Several moves of one partition in a batch run one after the other.
    """

    table: str
    partition: int
    source: NodeId
    target: NodeId
    of: int = 1
    """How many were ordered together; with the number left, this shows the progress."""


class AddTarget(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_target"
):
    """A migration begins: its target becomes a slave, which has to catch up."""

    table: str
    partition: int
    epoch: int


class RemoveTarget(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_target"
):
    """A migration's target is away: it stops being a slave, and the migration waits for it."""

    table: str
    partition: int
    epoch: int


class SlowDown(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="slow_down"
):
    """Slows writers down until a migration's target has caught up; `CancelHandover` ends it."""

    table: str
    partition: int
    epoch: int


class EndMigration(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_migration"
):
    """A migration's target has replaced its source, which stops being a replica."""

    table: str
    partition: int
    epoch: int


class CancelMigration(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_migration"
):
    """Cancels a migration; a target that is already a slave stops being one.

    The moves waiting behind it are cancelled too; if it is too late for the first, only those.
    """

    table: str
    partition: int


class SetDraining(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_draining"
):
    """Drains a node, which gets nothing new and is to be emptied, or ends that."""

    id: NodeId
    is_draining: bool


class DoublePartitions(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    tag="double_partitions",
):
    """Orders twice as many partitions for a table; the keeper carries it out."""

    table: str


class SetReads(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_reads"
):
    """Sets which values reads of a table return; None: the default.

    Stores of 0.1.0 refuse it, so it is proposed only once there are none.
    """

    table: str
    reads: Reads | None


class BeginSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin_split"
):
    """Freezes the master's writes, so that two partitions can continue from its last record."""

    table: str
    partition: int
    epoch: int


class EndSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_split"
):
    """Splits the partition in two, which share the records up to this one."""

    table: str
    partition: int
    epoch: int
    record_epoch: int
    sequence: int


class CancelSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_split"
):
    """The master continues, with all of its slots for now."""

    table: str
    partition: int
    epoch: int


class AddUser(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_user"
):
    """Adds a user of a table."""

    user: User


class SetPassword(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_password"
):
    """Changes a user's password."""

    name: str
    password_hash: str


class RemoveUser(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_user"
):
    """Removes a user."""

    name: str


Change = (
    AtEpoch
    | CreateTable
    | DropTable
    | RegisterNode
    | RemoveNode
    | NodeUp
    | NodeDown
    | ChangeMaster
    | ForceMaster
    | MarkSlaves
    | BeginHandover
    | EndHandover
    | CancelHandover
    | SetMaster
    | AddSlave
    | RemoveSlave
    | Migrate
    | AddTarget
    | RemoveTarget
    | SlowDown
    | EndMigration
    | CancelMigration
    | SetDraining
    | DoublePartitions
    | SetReads
    | BeginSplit
    | EndSplit
    | CancelSplit
    | AddUser
    | SetPassword
    | RemoveUser
)


class RefusedChange(msgspec.Struct, frozen=True, array_like=True):
    """A refused change; code and text of an error in `base.errors`."""

    code: str
    message: str

    def error(self) -> RaftwoodError:
        return error_class(self.code)(self.message)


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """The result of a batch: the epoch after it, and None for each change that was made."""

    epoch: int
    results: tuple[RefusedChange | None, ...]


_encoder = msgspec.msgpack.Encoder()
_batches: msgspec.msgpack.Decoder[tuple[Change, ...]] = msgspec.msgpack.Decoder(tuple[Change, ...])
_results: msgspec.msgpack.Decoder[Applied] = msgspec.msgpack.Decoder(Applied)


def failed(error: RaftwoodError) -> RefusedChange:
    return RefusedChange(error.code, error.message)


def encode_batch(changes: tuple[Change, ...]) -> bytes:
    return _encoder.encode(changes)


def decode_batch(data: bytes) -> tuple[Change, ...]:
    try:
        changes = _batches.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not a command of Zeppelin's meta server: {error}") from None
    if not 1 <= len(changes) <= CHANGES_MAX:
        raise InvalidInput(f"{len(changes)} changes in a batch: give 1 to {CHANGES_MAX}")
    return changes


def encode_applied(applied: Applied) -> bytes:
    return _encoder.encode(applied)


def decode_applied(data: bytes) -> Applied:
    return _results.decode(data)
