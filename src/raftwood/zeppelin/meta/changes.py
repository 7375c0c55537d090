"""Changes of the topology and their results, as bytes: what the meta server's group agrees on.

Changes in one batch are one step of the epoch. A change that was planned names the epoch of the
partition that it was planned on, and is refused once that has moved: epochs of partitions are those
of the whole topology at their last change, so a table that was made anew has none of the old ones.

Fields that are not known are refused: skipping them could fail on one replica and not on another.
"""

from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError, error_class
from raftwood.zeppelin.model import NodeAddresses, NodeId, TableConfig, User

CHANGES_MAX: Final = 20_000
"""In one batch."""


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
    """The master goes on."""

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
    CreateTable
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
    | AddUser
    | SetPassword
    | RemoveUser
)


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A change that was refused; code and text of an error in `base.errors`."""

    code: str
    message: str

    def error(self) -> RaftwoodError:
        return error_class(self.code)(self.message)


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """What became of a batch: the epoch after it, and None for each change that was made."""

    epoch: int
    results: tuple[Failed | None, ...]


_encoder = msgspec.msgpack.Encoder()
_batches: msgspec.msgpack.Decoder[tuple[Change, ...]] = msgspec.msgpack.Decoder(tuple[Change, ...])
_results: msgspec.msgpack.Decoder[Applied] = msgspec.msgpack.Decoder(Applied)


def failed(error: RaftwoodError) -> Failed:
    return Failed(error.code, error.message)


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
