"""The calls that change or list things, each a struct with the type of its answer."""

from typing import Any, ClassVar, Final

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.loghub.model import LogKind, Logstore, Project, Shard
from raftwood.net import Payload


class ConsumerGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group as clients see it."""

    name: str
    timeout_s: int
    is_ordered: bool


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
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

    answer: ClassVar[Any] = list[Checkpoint]

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

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(AnyControl).decode
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


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
