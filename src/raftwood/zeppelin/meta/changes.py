"""Changes of the topology and their results, as bytes: what the meta server's group agrees on.

Changes in one batch are one step of the epoch. A change that was planned names the epoch of the
partition that it was planned on, and is refused once that has moved: epochs of partitions are those
of the whole topology at their last change, so a table that was made anew has none of the old ones.

Fields that are not known are refused: skipping them could fail on one replica and not on another.
"""

from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError, error_class
from raftwood.zeppelin.model import NodeAddresses, NodeId, Reads, TableConfig, User

CHANGES_MAX: Final = 20_000
"""In one batch."""


class AtEpoch(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="at_epoch"
):
    """The first of a batch that was planned as a whole: if the topology has changed since, or
    anything else of the batch is refused, nothing of it is made.
    """

    epoch: int


class CreateTable(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="create_table"
):
    """A new table, placed on the nodes that are up."""

    name: str
    config: TableConfig


class DropTable(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="drop_table"
):
    """A table goes, and the users that may use it."""

    name: str


class RegisterNode(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="register_node"
):
    """A node has started, and is up; a new `run` after each start of its process."""

    id: NodeId
    addresses: NodeAddresses
    failure_domain: str
    run: int


class RemoveNode(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_node"
):
    """Forget a node that is down and has nothing."""

    id: NodeId


class NodeUp(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="node_up"
):
    """A node that was down is heard again."""

    id: NodeId
    run: int


class NodeDown(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="node_down"
):
    """A node was not heard for too long; refused where it has started anew since."""

    id: NodeId
    run: int


class ChangeMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="change_master"
):
    """Failover: another replica is master now where it is down or gone, or none is.

    One that is up may become none by this, if it cannot lead.
    """

    table: str
    partition: int
    epoch: int
    master: NodeId | None
    lagging: tuple[NodeId, ...] = ()
    """Slaves that were found to have missed too much."""
    run: int | None = None
    """Of the new master when it told how far it is: after a restart it may have less."""


class ForceMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="force_master"
):
    """Make a replica master of a partition that has none, whatever it has missed: that is lost."""

    table: str
    partition: int
    node: NodeId


class MarkSlaves(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="mark_slaves"
):
    """Which slaves have missed too much."""

    table: str
    partition: int
    epoch: int
    lagging: tuple[NodeId, ...]
    unproven: tuple[NodeId, ...] = ()


class BeginHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin_handover"
):
    """Freeze the master's writes, so that a slave can have all of them and take over."""

    table: str
    partition: int
    epoch: int
    target: NodeId


class EndHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_handover"
):
    """The target has all that the frozen master has: it is master now."""

    table: str
    partition: int
    epoch: int


class CancelHandover(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_handover"
):
    """The master goes on, at full speed."""

    table: str
    partition: int
    epoch: int


class SetMaster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_master"
):
    """A slave is to be master from now on: the preferred one at once, the real one by hand-over."""

    table: str
    partition: int
    node: NodeId


class AddSlave(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_slave"
):
    """One more replica, which has to catch up first."""

    table: str
    partition: int
    node: NodeId


class RemoveSlave(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_slave"
):
    """One replica less."""

    table: str
    partition: int
    node: NodeId


class Migrate(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="migrate"
):
    """Move a replica to a node that has none of this partition; the keeper does the rest.

    Several in one batch that move replicas of one partition are done one after the other.
    """

    table: str
    partition: int
    source: NodeId
    target: NodeId
    of: int = 1
    """So many are ordered together: those that are left tell how many are done."""


class AddTarget(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_target"
):
    """A migration begins: its target is a slave, which has to catch up."""

    table: str
    partition: int
    epoch: int


class RemoveTarget(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_target"
):
    """A migration's target is away: it is no slave any more, and the migration waits for it."""

    table: str
    partition: int
    epoch: int


class SlowDown(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="slow_down"
):
    """Writers are held back until a migration's target has caught up; `CancelHandover` ends it."""

    table: str
    partition: int
    epoch: int


class EndMigration(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_migration"
):
    """A migration's target has taken its source's place, which is no replica any more."""

    table: str
    partition: int
    epoch: int


class CancelMigration(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_migration"
):
    """All stays as it is; the target, if it is a slave already, is none any more.

    What was to move after it does not; where it is too late for the first, that alone.
    """

    table: str
    partition: int


class SetDraining(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_draining"
):
    """A node is to be emptied and gets nothing new, or may have something again."""

    id: NodeId
    is_draining: bool


class DoublePartitions(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    tag="double_partitions",
):
    """A table is to have twice as many partitions; the keeper does the rest."""

    table: str


class SetReads(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_reads"
):
    """What reads of a table tell from now on; None: what is usual for it.

    Stores of 0.1.0 refuse it: it is proposed once there are none.
    """

    table: str
    reads: Reads | None


class BeginSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="begin_split"
):
    """Freeze the master's writes, so that two partitions can go on from where it is."""

    table: str
    partition: int
    epoch: int


class EndSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="end_split"
):
    """There are two partitions now, which have the same records up to one."""

    table: str
    partition: int
    epoch: int
    record_epoch: int
    sequence: int


class CancelSplit(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cancel_split"
):
    """The master goes on, with all of its slots for now."""

    table: str
    partition: int
    epoch: int


class AddUser(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="add_user"
):
    """Somebody may use a table."""

    user: User


class SetPassword(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="set_password"
):
    """A user gets another password."""

    name: str
    password_hash: str


class RemoveUser(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="remove_user"
):
    """Somebody may not any more."""

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
    """A change that was refused; code and text of an error in `base.errors`."""

    code: str
    message: str

    def error(self) -> RaftwoodError:
        return error_class(self.code)(self.message)


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """What became of a batch: the epoch after it, and None for each change that was made."""

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
