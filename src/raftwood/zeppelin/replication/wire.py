"""The methods of the replication listener, by which nodes exchange records and positions.

A slave asks its master (`TRY_SYNC`, `REPAIR_KEYS`, `FULL_SYNC`) and acks to it (`ACK`). The master
sends `RECORDS`: all partitions of one turn in one message, each record as it stands in the binlog.
"""

from typing import Final

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.net import Identity, Method, TypedMethod
from raftwood.net.method_numbers import MethodNumber
from raftwood.zeppelin.model import Gap, NodeId, PartitionId
from raftwood.zeppelin.records import BinlogPosition, EpochStart, KeyWrite
from raftwood.zeppelin.replication.epochs import SyncAnswer, SyncOffer
from raftwood.zeppelin.replication.progress import Reached

NODE_ROLE: Final = "zeppelin"
_ROLES = (NODE_ROLE,)


def node_identity(node: NodeId) -> Identity:
    return Identity(role=NODE_ROLE, node_id=node)


class TrySyncRequest(msgspec.Struct, frozen=True, array_like=True):
    """A slave's offer, for a session of its own numbering."""

    partition: PartitionId
    partition_epoch: int
    """As the slave knows it; a master that knows an older one is asked again later."""
    session: int
    offer: SyncOffer


class TrySyncResponse(msgspec.Struct, frozen=True, array_like=True):
    """The slave's next step."""

    answer: SyncAnswer


class RecordsPart(msgspec.Struct, frozen=True, array_like=True):
    """Records of one partition, in order."""

    partition: PartitionId
    session: int
    records: list[Buffer]


class ReceivedPart(msgspec.Struct, frozen=True, array_like=True):
    """A decoded `RecordsPart`."""

    partition: PartitionId
    session: int
    records: list[bytes]


class SlaveStanding(msgspec.Struct, frozen=True, array_like=True):
    """How far a slave is with one partition."""

    partition: PartitionId
    session: int
    reached: Reached
    is_whole: bool


class AckRequest(msgspec.Struct, frozen=True, array_like=True):
    """All that a slave acks to a master now."""

    standings: list[SlaveStanding]


class AckResponse(msgspec.Struct, frozen=True, array_like=True):
    """The master's answer to the standings."""

    lags_bytes: list[int | None]
    """For each standing, about how far it lags; None: nothing is sent under that session, so the
    slave has to sync."""
    gaps: list[Gap | None] = []
    """For each standing; masters of 0.1.0 send none."""
    done: list[int] = []
    """For each standing, up to which record all is done, for clients that read from slaves. Masters
    of 0.1.0 do not send it, and slaves of 0.1.0 skip it."""


class RepairKeysRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the present values of keys."""

    partition: PartitionId
    partition_epoch: int
    """The topology's epoch, as the slave knows it."""
    keys: list[bytes]


class RepairKeysResponse(msgspec.Struct, frozen=True, array_like=True):
    """The values of the first keys, as many as fit into one answer."""

    position: BinlogPosition
    values: list[KeyWrite]


class CopyRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a whole copy of a partition."""

    partition: PartitionId
    partition_epoch: int
    """The topology's epoch, as the slave knows it."""
    has: dict[str, tuple[int, int]] = {}
    """Files from an earlier attempt, each with its size and its XXH3-64; the master does not send
    files that are the same there."""


class CopyChunk(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A part of a file, in the order of the file; an empty one makes an empty file."""

    name: str
    offset: int
    data: bytes
    total_bytes: int = 0
    """Size of all files together; the first chunk has it."""


class CopyEnd(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The end of a copy: the list of its files, and their position."""

    files: dict[str, tuple[int, int]]
    """Each with its size and its XXH3-64."""
    sequence: int
    epochs: tuple[EpochStart, ...]


TRY_SYNC: Final = TypedMethod(
    MethodNumber.KV_TRY_SYNC,
    "kv-try-sync",
    request=TrySyncRequest,
    response=TrySyncResponse,
    roles=_ROLES,
)
RECORDS: Final = Method(MethodNumber.KV_RECORDS, "kv-records", roles=_ROLES)
ACK: Final = TypedMethod(
    MethodNumber.KV_ACK, "kv-ack", request=AckRequest, response=AckResponse, roles=_ROLES
)
REPAIR_KEYS: Final = TypedMethod(
    MethodNumber.KV_REPAIR_KEYS,
    "kv-repair-keys",
    request=RepairKeysRequest,
    response=RepairKeysResponse,
    roles=_ROLES,
)
FULL_SYNC: Final = Method(MethodNumber.KV_FULL_SYNC, "kv-full-sync", roles=_ROLES)

_encode = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(list[ReceivedPart]).decode
_decode_copy_request = msgspec.msgpack.Decoder(CopyRequest).decode
_decode_copy = msgspec.msgpack.Decoder(CopyChunk | CopyEnd).decode


def encode_parts(parts: list[RecordsPart]) -> bytes:
    return _encode(parts)


def decode_parts(payload: Buffer) -> list[ReceivedPart]:
    try:
        return _decode_parts(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"records of a binlog cannot be read: {error}") from error


def encode_copy(item: CopyRequest | CopyChunk | CopyEnd) -> bytes:
    return _encode(item)


def decode_copy_request(payload: Buffer) -> CopyRequest:
    try:
        return _decode_copy_request(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a request for a copy cannot be read: {error}") from error


def decode_copy(payload: Buffer) -> CopyChunk | CopyEnd:
    try:
        item: CopyChunk | CopyEnd = _decode_copy(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a part of a copy cannot be read: {error}") from error
    return item
