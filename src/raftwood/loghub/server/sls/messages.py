"""JSON of SLS calls, and errors as SLS clients expect them; names in SLS's own case.

An error is a status, a code that the clients know, and a message.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftwood.base.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    OutOfRange,
    PermissionDenied,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from raftwood.loghub.errors import SlsError
from raftwood.loghub.model import Logstore, Project, Shard, ShardStatus
from raftwood.loghub.server.http import HttpResponse
from raftwood.loghub.wire import ConsumerGroupView, GroupCheckpoint, LogstoreOptions

_Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names in camel case, but for those that say otherwise."""


class CreateProjectBody(_Message, frozen=True, kw_only=True):
    """A project to make; its name stands in Host as well."""

    project_name: str
    description: str = ""


class UpdateProjectBody(_Message, frozen=True, kw_only=True):
    """What is to change of a project."""

    description: str | None = None


class ProjectAnswer(_Message, frozen=True, kw_only=True):
    """A project."""

    project_name: str
    status: str
    description: str
    region: str
    owner: str
    create_time: str
    last_modify_time: str
    resource_group_id: str = ""


class ProjectsAnswer(_Message, frozen=True, kw_only=True):
    """A page of projects."""

    count: int
    total: int
    projects: list[ProjectAnswer]


class LogstoreBody(_Message, frozen=True, kw_only=True):
    """A logstore to make or change; what SLS's own has beyond this is left out."""

    logstore_name: str = ""
    ttl: _Count | None = None
    shard_count: _Count | None = None
    enable_tracking: bool | None = msgspec.field(default=None, name="enable_tracking")
    auto_split: bool | None = None
    max_split_shard: int | None = None
    append_meta: bool | None = None
    telemetry_type: str | None = None

    def options(self) -> LogstoreOptions:
        # Without automatic splits clients send a limit all the same: 0, or from Java -1.
        is_limited = self.max_split_shard is not None and self.max_split_shard > 0
        return LogstoreOptions(
            ttl_days=self.ttl,
            enable_tracking=self.enable_tracking,
            append_meta=self.append_meta,
            auto_split=self.auto_split,
            shards_split_max=self.max_split_shard if is_limited else None,
            telemetry_type=self.telemetry_type,
        )


class LogstoreAnswer(_Message, frozen=True, kw_only=True):
    """A logstore."""

    logstore_name: str
    ttl: int
    shard_count: int
    enable_tracking: bool = msgspec.field(name="enable_tracking")
    append_meta: bool
    auto_split: bool
    max_split_shard: int
    telemetry_type: str
    create_time: int
    last_modify_time: int


class LogstoresAnswer(_Message, frozen=True, kw_only=True):
    """A page of the names of logstores."""

    count: int
    total: int
    logstores: list[str]


class ShardAnswer(_Message, frozen=True, kw_only=True):
    """A shard."""

    shard_id: int = msgspec.field(name="shardID")
    status: str
    inclusive_begin_key: str
    exclusive_end_key: str
    create_time: int


class CursorAnswer(_Message, frozen=True, kw_only=True):
    """A cursor."""

    cursor: str


class CursorTimeAnswer(_Message, frozen=True, kw_only=True):
    """When what stands at a cursor was received, in seconds."""

    cursor_time: int = msgspec.field(name="cursor_time")


class CreateGroupBody(_Message, frozen=True, kw_only=True):
    """A consumer group to make."""

    consumer_group: str
    timeout: _Count = 60
    order: bool = False


class UpdateGroupBody(_Message, frozen=True, kw_only=True):
    """What is to change of a consumer group."""

    timeout: _Count | None = None
    order: bool | None = None


class GroupAnswer(_Message, frozen=True, kw_only=True):
    """A consumer group."""

    name: str
    timeout: int
    order: bool


class CheckpointBody(_Message, frozen=True, kw_only=True):
    """How far a shard was read."""

    shard: _Count
    checkpoint: str


class CheckpointAnswer(_Message, frozen=True, kw_only=True):
    """How far a shard was read, by whom and when."""

    shard: int
    checkpoint: str
    update_time: int
    consumer: str


def project_answer(project: Project) -> ProjectAnswer:
    return ProjectAnswer(
        project_name=project.name,
        status="Normal",
        description=project.description,
        region="",
        owner=project.owner,
        create_time=str(project.created_s),
        last_modify_time=str(project.modified_s),
    )


def logstore_answer(logstore: Logstore) -> LogstoreAnswer:
    shards = [shard_answer(each) for each in logstore.visible()]
    return LogstoreAnswer(
        logstore_name=logstore.name,
        ttl=logstore.ttl_days,
        shard_count=sum(each.status == "readwrite" for each in shards),
        enable_tracking=logstore.enable_tracking,
        append_meta=logstore.append_meta,
        auto_split=logstore.auto_split,
        max_split_shard=logstore.shards_split_max,
        telemetry_type=logstore.telemetry_type,
        create_time=logstore.created_s,
        last_modify_time=logstore.modified_s,
    )


def shard_answer(shard: Shard) -> ShardAnswer:
    """Encodes a shard; hides, while it is sealing, which shards take its range over."""
    is_readonly = shard.status is ShardStatus.READONLY
    return ShardAnswer(
        shard_id=shard.id,
        status="readonly" if is_readonly else "readwrite",
        inclusive_begin_key=shard.begin,
        exclusive_end_key=shard.end,
        create_time=shard.created_s,
    )


def group_answer(group: ConsumerGroupView) -> GroupAnswer:
    return GroupAnswer(name=group.name, timeout=group.timeout_s, order=group.is_ordered)


def checkpoint_answer(checkpoint: GroupCheckpoint) -> CheckpointAnswer:
    return CheckpointAnswer(
        shard=checkpoint.shard,
        checkpoint=checkpoint.checkpoint,
        update_time=checkpoint.updated_us,
        consumer=checkpoint.consumer,
    )


_CODES: Final[tuple[tuple[type[RaftwoodError], int, str], ...]] = (
    (Unauthenticated, 401, "Unauthorized"),
    (PermissionDenied, 403, "Unauthorized"),
    (TooLarge, 413, "PostBodyTooLarge"),
    (OutOfRange, 400, "InvalidCursor"),
    (InvalidInput, 400, "ParameterInvalid"),
    (NotFound, 404, "ParameterInvalid"),
    (Conflict, 409, "ParameterInvalid"),
    # Clients try again after any 5xx, and after nothing else.
    (DeadlineExceeded, 504, "RequestTimeout"),
    (Unavailable, 503, "ServerBusy"),
)


class ErrorBody(msgspec.Struct, frozen=True, gc=False):
    """What a client reads."""

    errorCode: str  # noqa: N815
    errorMessage: str  # noqa: N815


def error_answer(error: RaftwoodError) -> HttpResponse:
    status, code = _status_and_code(error)
    return HttpResponse(status=status, body=msgspec.json.encode(ErrorBody(code, error.message)))


def _status_and_code(error: RaftwoodError) -> tuple[int, str]:
    if isinstance(error, SlsError):
        return error.http_status, error.sls_code
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return status, code
    return 500, "InternalServerError"
