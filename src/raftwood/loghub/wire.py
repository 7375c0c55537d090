"""Requests and responses between native clients and gateways.

PUT and PULL carry batches as raw bytes behind a small head, to avoid copies of bodies; all other
calls are structs. PUT is answered with the batch's position. Positions are 16 bytes each, see
`base.position`; a cursor is a position as text, as SLS clients expect it.

CONTROL carries one `Control`: a struct for each call that changes or lists things, with the type of
its answer. Its tag on the wire is the name of its class.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from raftwood.base.compression import Codec
from raftwood.base.errors import InvalidInput, ProtocolError
from raftwood.base.files import Buffer
from raftwood.base.position import Position, parse_position, position_from_bytes, position_to_bytes
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.errors import InvalidCursor
from raftwood.loghub.model import LogKind, Logstore, Project, Shard
from raftwood.net import Method, Payload, TypedMethod
from raftwood.net.method_numbers import MethodNumber

CLUSTER: Final = "loghub"
"""Sent instead of the cluster's name in the handshake between clients and gateways."""
KEY_ROLE: Final = "key"
GATEWAY_ROLE: Final = "gateway"
_ROLES: Final = (KEY_ROLE,)

_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES_MAX: Final = 1 << 20


class PutHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The target of a batch, and its description."""

    project: str
    logstore: str
    shard: int
    producer: str
    sequence: int
    format: int
    codec: int
    raw_bytes: int
    records: int


class PullRequest(msgspec.Struct, frozen=True, array_like=True):
    """Batches of a shard from a position on."""

    project: str
    logstore: str
    shard: int
    start: bytes
    """A position, like all below."""
    batches_max: int
    bytes_max: int
    wait_ms: int = 0
    heads_only: bool = False
    """Leaves out the bodies: for a planner that divides work among readers."""


class PulledHead(msgspec.Struct, frozen=True, array_like=True):
    """The result of a pull; the batches follow, one behind the other."""

    next: bytes
    first: bytes
    is_ended: bool
    positions: bytes
    """The positions of all batches, concatenated."""
    sizes: tuple[int, ...]


class Pulled(msgspec.Struct, frozen=True):
    """The result of a pull, decoded."""

    batches: list[StoredBatch]
    next: Position
    first: Position
    """The first position that is not freed; above the requested one if that was freed."""
    is_ended: bool
    """The shard was split or merged, and nothing follows."""


class StreamRequest(msgspec.Struct, frozen=True, array_like=True):
    """Names a logstore."""

    project: str
    logstore: str


class CursorRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a shard's position: its `begin`, its `end`, or a time in seconds since 1970."""

    project: str
    logstore: str
    shard: int
    at: int | str


class ShardDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, the range of its records, and the reader that holds back its truncation."""

    shard: Shard
    first: str
    """A position as decimal text, like those below: JSON has no 128-bit integers."""
    next: str
    appended_bytes: int
    required: str | None
    """The next position of the slowest registered reader; None if no reader is registered."""
    required_by: str = ""
    """The name of that reader."""


PUT: Final = Method(MethodNumber.LOGHUB_PUT, "loghub-put", roles=_ROLES)
PULL: Final = Method(MethodNumber.LOGHUB_PULL, "loghub-pull", roles=_ROLES)
SHARDS: Final = TypedMethod(
    MethodNumber.LOGHUB_SHARDS,
    "loghub-shards",
    request=StreamRequest,
    response=list[Shard],
    roles=_ROLES,
)
CURSOR: Final = TypedMethod(
    MethodNumber.LOGHUB_CURSOR, "loghub-cursor", request=CursorRequest, response=bytes, roles=_ROLES
)
DESCRIBE: Final = TypedMethod(
    MethodNumber.LOGHUB_DESCRIBE,
    "loghub-describe",
    request=StreamRequest,
    response=list[ShardDetail],
    roles=_ROLES,
)
CONTROL: Final = Method(MethodNumber.LOGHUB_CONTROL, "loghub-control", roles=_ROLES)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_put: Final = msgspec.msgpack.Decoder(PutHead).decode
_decode_pull: Final = msgspec.msgpack.Decoder(PullRequest).decode
_decode_pulled: Final = msgspec.msgpack.Decoder(PulledHead).decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def _framed(head: bytes) -> bytes:
    return _LENGTH.pack(len(head)) + head


def _unframed(payload: Payload) -> tuple[memoryview, memoryview]:
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise ProtocolError("a LogHub message has no head")
    (length,) = _LENGTH.unpack_from(view)
    if length > min(HEAD_BYTES_MAX, len(view) - _LENGTH.size):
        raise ProtocolError("the head of a LogHub message is longer than the message, or its limit")
    return view[_LENGTH.size : _LENGTH.size + length], view[_LENGTH.size + length :]


class PutRequest(msgspec.Struct, frozen=True, gc=False):
    """A batch for one shard, with its producer's name and sequence."""

    project: str
    logstore: str
    shard: int
    producer: str
    sequence: int
    batch: Batch


def encode_put(request: PutRequest) -> list[Buffer]:
    """Returns pieces, so that the body is not copied."""
    batch = request.batch
    head = PutHead(
        request.project,
        request.logstore,
        request.shard,
        request.producer,
        request.sequence,
        batch.format,
        batch.codec,
        batch.raw_bytes,
        batch.records,
    )
    return [_framed(_encode(head)), batch.body]


def decode_put(payload: Payload) -> PutRequest:
    data, body = _unframed(payload)
    try:
        head = _decode_put(data)
        batch = Batch(
            body=body,
            format=Format(head.format),
            codec=Codec(head.codec),
            raw_bytes=head.raw_bytes,
            records=head.records,
        )
    except _UNREADABLE as error:
        raise ProtocolError(f"a batch to put cannot be read: {error}") from error
    return PutRequest(head.project, head.logstore, head.shard, head.producer, head.sequence, batch)


def encode_pull(request: PullRequest) -> bytes:
    return _encode(request)


def decode_pull(payload: Payload) -> PullRequest:
    try:
        return _decode_pull(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a pull cannot be read: {error}") from error


def encode_pulled(pulled: Pulled) -> list[Buffer]:
    """Returns pieces, so that batches are not copied."""
    batches: Sequence[StoredBatch] = pulled.batches
    head = PulledHead(
        position_to_bytes(pulled.next),
        position_to_bytes(pulled.first),
        pulled.is_ended,
        b"".join([position_to_bytes(each.position) for each in batches]),
        tuple(len(each.data) for each in batches),
    )
    return [_framed(_encode(head)), *[each.data for each in batches]]


def decode_pulled(payload: Payload) -> Pulled:
    data, bodies = _unframed(payload)
    try:
        head = _decode_pulled(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to a pull cannot be read: {error}") from error
    if len(head.positions) != 16 * len(head.sizes) or sum(head.sizes) != len(bodies):
        raise ProtocolError("the answer to a pull has other batches than it says")
    batches, offset = [], 0
    for place, size in enumerate(head.sizes):
        position = position_from_bytes(head.positions[16 * place : 16 * place + 16])
        batches.append(StoredBatch(position, bodies[offset : offset + size]))
        offset += size
    following, first = position_from_bytes(head.next), position_from_bytes(head.first)
    return Pulled(batches, following, first, head.is_ended)


class ConsumerGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group as clients see it."""

    name: str
    timeout_s: int
    is_ordered: bool


class GroupCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far a consumer group has read a shard."""

    shard: int
    checkpoint: str
    """A cursor; empty if there is no checkpoint yet."""
    updated_us: int
    """When it was set, in microseconds since 1970; 0 for never."""
    consumer: str


class ProjectList(msgspec.Struct, frozen=True):
    """A page of projects."""

    total: int
    projects: list[Project]


class LogstoreList(msgspec.Struct, frozen=True):
    """A page of the names of logstores."""

    total: int
    logstores: list[str]


class Control(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The base of all control calls; `answer` is the type of the answer."""

    answer: ClassVar[Any] = None

    project: str


class CreateProject(Control, frozen=True, kw_only=True):
    """Creates a project."""

    description: str = ""


class UpdateProject(Control, frozen=True, kw_only=True):
    """Changes the given values of a project."""

    description: str | None = None
    write_bytes_per_s_max: int | None = None


class GetProject(Control, frozen=True, kw_only=True):
    """Returns a project."""

    answer: ClassVar[Any] = Project


class DeleteProject(Control, frozen=True, kw_only=True):
    """Removes a project that has no logstores."""


class ListProjects(Control, frozen=True, kw_only=True):
    """Lists the projects in which the key has a role."""

    answer: ClassVar[Any] = ProjectList

    project: str = ""
    offset: int = 0
    size: int = 100
    contains: str = ""


class LogstoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a logstore; None leaves one unchanged, or at its default."""

    ttl_days: int | None = None
    retained_bytes_max: int | None = None
    ttl_spares_readers: bool | None = None
    enable_tracking: bool | None = None
    append_meta: bool | None = None
    auto_split: bool | None = None
    shards_split_max: int | None = None
    telemetry_type: str | None = None


class CreateLogstore(Control, frozen=True, kw_only=True):
    """Creates a logstore."""

    logstore: str
    shard_count: int = 2
    log: LogKind = LogKind.LOGSERVICE
    options: LogstoreOptions = LogstoreOptions()


class UpdateLogstore(Control, frozen=True, kw_only=True):
    """Changes the given options of a logstore."""

    logstore: str
    options: LogstoreOptions


class GetLogstore(Control, frozen=True, kw_only=True):
    """Returns a logstore."""

    answer: ClassVar[Any] = Logstore

    logstore: str


class DeleteLogstore(Control, frozen=True, kw_only=True):
    """Removes a logstore and all of its records."""

    logstore: str


class ListLogstores(Control, frozen=True, kw_only=True):
    """Lists the names of logstores, in order."""

    answer: ClassVar[Any] = LogstoreList

    offset: int = 0
    size: int = 100
    contains: str = ""


class SplitShard(Control, frozen=True, kw_only=True):
    """Splits a shard: at a key, or in the middle. Returns the shards that changed."""

    answer: ClassVar[Any] = list[Shard]

    logstore: str
    shard: int
    key: str | None = None


class MergeShard(Control, frozen=True, kw_only=True):
    """Merges a shard with the one whose range follows. Returns the shards that changed."""

    answer: ClassVar[Any] = list[Shard]

    logstore: str
    shard: int


class DeleteShard(Control, frozen=True, kw_only=True):
    """Removes a shard that was split or merged, with its records."""

    logstore: str
    shard: int


class TruncateShard(Control, frozen=True, kw_only=True):
    """Frees all batches before a position, except those that a registered reader needs. Returns the
    first position that is left. Positions are decimal text.
    """

    answer: ClassVar[Any] = str

    logstore: str
    shard: int
    before: str


class CreateConsumerGroup(Control, frozen=True, kw_only=True):
    """Creates a consumer group."""

    logstore: str
    group: str
    timeout_s: int = 60
    is_ordered: bool = True


class UpdateConsumerGroup(Control, frozen=True, kw_only=True):
    """Changes the given values of a consumer group."""

    logstore: str
    group: str
    timeout_s: int | None = None
    is_ordered: bool | None = None


class DeleteConsumerGroup(Control, frozen=True, kw_only=True):
    """Removes a consumer group and its checkpoints."""

    logstore: str
    group: str


class ListConsumerGroups(Control, frozen=True, kw_only=True):
    """Lists the consumer groups of a logstore."""

    answer: ClassVar[Any] = list[ConsumerGroupView]

    logstore: str


class Heartbeat(Control, frozen=True, kw_only=True):
    """Says that a consumer is alive and holds these shards; returns the shards that it may read."""

    answer: ClassVar[Any] = list[int]

    logstore: str
    group: str
    consumer: str
    held: tuple[int, ...]


class SetCheckpoint(Control, frozen=True, kw_only=True):
    """Sets a shard's checkpoint; refused if another consumer has the shard, unless forced."""

    logstore: str
    group: str
    consumer: str
    shard: int
    checkpoint: str
    is_forced: bool = False


class GetCheckpoints(Control, frozen=True, kw_only=True):
    """Returns the checkpoint of one shard, or of all."""

    answer: ClassVar[Any] = list[GroupCheckpoint]

    logstore: str
    group: str
    shard: int | None = None


AnyControl = (
    CreateProject
    | UpdateProject
    | GetProject
    | DeleteProject
    | ListProjects
    | CreateLogstore
    | UpdateLogstore
    | GetLogstore
    | DeleteLogstore
    | ListLogstores
    | SplitShard
    | MergeShard
    | DeleteShard
    | TruncateShard
    | CreateConsumerGroup
    | UpdateConsumerGroup
    | DeleteConsumerGroup
    | ListConsumerGroups
    | Heartbeat
    | SetCheckpoint
    | GetCheckpoints
)

_decode: Final = msgspec.msgpack.Decoder(AnyControl).decode


def encode_control(control: AnyControl) -> bytes:
    return _encode(control)


def decode_control(payload: Payload) -> AnyControl:
    try:
        control: AnyControl = _decode(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"a call to LogHub cannot be read: {error}") from error
    return control


def encode_control_answer(answer: Any) -> bytes:
    return _encode(answer)


def decode_control_answer(control: AnyControl, payload: Payload) -> Any:
    """Decodes an answer into the call's `answer` type."""
    try:
        return msgspec.msgpack.decode(payload, type=control.answer)
    except _UNREADABLE as error:
        name = type(control).__name__
        raise ProtocolError(f"the answer to {name} cannot be read: {error}") from error


def encode_cursor(position: int) -> str:
    return base64.b64encode(str(position).encode()).decode()


def decode_cursor(text: str) -> Position:
    """`InvalidCursor` for a text that no gateway makes."""
    try:
        digits = base64.b64decode("".join(text.split()), validate=True).decode("ascii")
        return parse_position(digits)
    except (binascii.Error, ValueError, InvalidInput) as error:
        raise InvalidCursor(
            f"{text[:60]!r} is no cursor: ask for one with type=cursor, or use the one that a pull "
            "answered"
        ) from error
