"""Requests and responses between native clients and gateways.

PUT and PULL carry batches as raw bytes behind a small head, so that a body is copied as rarely as
can be; all other calls are structs. PUT is answered with the batch's position. Positions are 16
bytes each, see `base.position`; a cursor is a position as text, as SLS clients expect it.

CONTROL carries one `Control`: a struct for each call that changes or lists things, with the type of
its answer. The name of its class is its tag on the wire.
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
"""Stands in for the cluster's name in the handshake between clients and gateways."""
KEY_ROLE: Final = "key"
GATEWAY_ROLE: Final = "gateway"
_ROLES: Final = (KEY_ROLE,)

_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES_MAX: Final = 1 << 20


class PutHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a batch goes, and what it is."""

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
    """A position, as all below."""
    batches_max: int
    bytes_max: int
    wait_ms: int = 0
    heads_only: bool = False
    """Without the bodies, for who plans what others read."""


class PulledHead(msgspec.Struct, frozen=True, array_like=True):
    """What a pull found; the batches follow, one behind the other."""

    next: bytes
    first: bytes
    is_ended: bool
    positions: bytes
    """Of all batches, one behind the other."""
    sizes: tuple[int, ...]


class Pulled(msgspec.Struct, frozen=True):
    """What a pull found."""

    batches: list[StoredBatch]
    next: Position
    first: Position
    """The first position that was left to read: above the one asked for where that was freed."""
    is_ended: bool
    """The shard was split or merged, and nothing follows."""


class StreamRequest(msgspec.Struct, frozen=True, array_like=True):
    """A logstore."""

    project: str
    logstore: str


class CursorRequest(msgspec.Struct, frozen=True, array_like=True):
    """A shard's position: its `begin`, its `end`, or as of a time in seconds since 1970."""

    project: str
    logstore: str
    shard: int
    at: int | str


class ShardDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A shard, what it holds, and who needs it."""

    shard: Shard
    first: str
    """A position as decimal text, as those below: JSON has no integers of 128 bits."""
    next: str
    appended_bytes: int
    required: str | None
    """What the slowest registered reader reads next; None where nobody is registered."""
    required_by: str = ""
    """That reader."""


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
    """A batch for one shard, under a sequence of its producer."""

    project: str
    logstore: str
    shard: int
    producer: str
    sequence: int
    batch: Batch


def encode_put(request: PutRequest) -> list[Buffer]:
    """In pieces, for a body need not be copied."""
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
    """In pieces, for batches need not be copied."""
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
    """A cursor; empty where nothing was ever noted."""
    updated_us: int
    """When, since 1970; 0 for never."""
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
    """The root of all; `answer` is the type of what it is answered with."""

    answer: ClassVar[Any] = None

    project: str


class CreateProject(Control, frozen=True, kw_only=True):
    """A new project."""

    description: str = ""


class UpdateProject(Control, frozen=True, kw_only=True):
    """Change what is given."""

    description: str | None = None
    write_bytes_per_s_max: int | None = None


class GetProject(Control, frozen=True, kw_only=True):
    """A project."""

    answer: ClassVar[Any] = Project


class DeleteProject(Control, frozen=True, kw_only=True):
    """Remove a project without logstores."""


class ListProjects(Control, frozen=True, kw_only=True):
    """Projects in which the key has a role."""

    answer: ClassVar[Any] = ProjectList

    project: str = ""
    offset: int = 0
    size: int = 100
    contains: str = ""


class LogstoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be set; None leaves a thing as it is, or at its default."""

    ttl_days: int | None = None
    retained_bytes_max: int | None = None
    ttl_spares_readers: bool | None = None
    enable_tracking: bool | None = None
    append_meta: bool | None = None
    auto_split: bool | None = None
    shards_split_max: int | None = None
    telemetry_type: str | None = None


class CreateLogstore(Control, frozen=True, kw_only=True):
    """A new logstore."""

    logstore: str
    shard_count: int = 2
    log: LogKind = LogKind.LOGSERVICE
    options: LogstoreOptions = LogstoreOptions()


class UpdateLogstore(Control, frozen=True, kw_only=True):
    """Change what is given."""

    logstore: str
    options: LogstoreOptions


class GetLogstore(Control, frozen=True, kw_only=True):
    """A logstore."""

    answer: ClassVar[Any] = Logstore

    logstore: str


class DeleteLogstore(Control, frozen=True, kw_only=True):
    """Remove a logstore and all that is in it."""

    logstore: str


class ListLogstores(Control, frozen=True, kw_only=True):
    """Names of logstores, in order."""

    answer: ClassVar[Any] = LogstoreList

    offset: int = 0
    size: int = 100
    contains: str = ""


class SplitShard(Control, frozen=True, kw_only=True):
    """Cut a shard in two: at a key, or in the middle. The shards that it concerns."""

    answer: ClassVar[Any] = list[Shard]

    logstore: str
    shard: int
    key: str | None = None


class MergeShard(Control, frozen=True, kw_only=True):
    """Join a shard with the one whose range follows. The shards that it concerns."""

    answer: ClassVar[Any] = list[Shard]

    logstore: str
    shard: int


class DeleteShard(Control, frozen=True, kw_only=True):
    """Remove a shard that was split or merged, and what is in it."""

    logstore: str
    shard: int


class TruncateShard(Control, frozen=True, kw_only=True):
    """Let go of all before a position, but for what a registered reader needs; the first that is
    left. Positions are decimal text.
    """

    answer: ClassVar[Any] = str

    logstore: str
    shard: int
    before: str


class CreateConsumerGroup(Control, frozen=True, kw_only=True):
    """A new consumer group."""

    logstore: str
    group: str
    timeout_s: int = 60
    is_ordered: bool = True


class UpdateConsumerGroup(Control, frozen=True, kw_only=True):
    """Change what is given."""

    logstore: str
    group: str
    timeout_s: int | None = None
    is_ordered: bool | None = None


class DeleteConsumerGroup(Control, frozen=True, kw_only=True):
    """Remove a consumer group and its checkpoints."""

    logstore: str
    group: str


class ListConsumerGroups(Control, frozen=True, kw_only=True):
    """The consumer groups of a logstore."""

    answer: ClassVar[Any] = list[ConsumerGroupView]

    logstore: str


class Heartbeat(Control, frozen=True, kw_only=True):
    """A consumer lives, and holds these shards; those that it may read."""

    answer: ClassVar[Any] = list[int]

    logstore: str
    group: str
    consumer: str
    held: tuple[int, ...]


class SetCheckpoint(Control, frozen=True, kw_only=True):
    """Note how far a shard was read; refused where another has the shard, unless forced."""

    logstore: str
    group: str
    consumer: str
    shard: int
    checkpoint: str
    is_forced: bool = False


class GetCheckpoints(Control, frozen=True, kw_only=True):
    """How far one shard was read, or all of them."""

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
    """As the call's `answer` says."""
    try:
        return msgspec.msgpack.decode(payload, type=control.answer)
    except _UNREADABLE as error:
        name = type(control).__name__
        raise ProtocolError(f"the answer to {name} cannot be read: {error}") from error


def encode_cursor(position: int) -> str:
    return base64.b64encode(str(position).encode()).decode()


def decode_cursor(text: str) -> Position:
    """`InvalidCursor` for what no gateway ever gave."""
    try:
        digits = base64.b64decode("".join(text.split()), validate=True).decode("ascii")
        return parse_position(digits)
    except (binascii.Error, ValueError, InvalidInput) as error:
        raise InvalidCursor(
            f"{text[:60]!r} is no cursor: ask for one with type=cursor, or use the one that a pull "
            "answered"
        ) from error
