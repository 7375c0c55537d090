"""`SlsRoutes`: the calls of SLS's API, and their paths and methods.

    front = HttpFront(environment, [SlsRoutes(environment, gateway, body_bytes_max=...)], ...)

The calls concern projects and logstores; consumer groups with their members and checkpoints; and
records: puts, pulls, cursors and shards. Errors about parameters and JSON bodies name what is
wrong.
"""

from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, DecodeBounds
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import SHARDS_MAX, AccessKey, AccessRole
from raftwood.loghub.server.access import check_role
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http import HttpRequest, HttpResponse, HttpRoute
from raftwood.loghub.server.sls.bodies import (
    ARROW,
    arrow_streams,
    batch_of,
    compressed,
    declared_raw_bytes,
    framed,
    log_group_list,
    log_groups,
)
from raftwood.loghub.server.sls.messages import (
    CheckpointBody,
    CreateGroupBody,
    CreateProjectBody,
    CursorAnswer,
    CursorTimeAnswer,
    LogstoreBody,
    LogstoresAnswer,
    ProjectsAnswer,
    UpdateGroupBody,
    UpdateProjectBody,
    checkpoint_answer,
    error_answer,
    group_answer,
    logstore_answer,
    project_answer,
    shard_answer,
)
from raftwood.loghub.server.sls.signatures import check_body, signing_key
from raftwood.loghub.wire import (
    AnyControl,
    CreateConsumerGroup,
    CreateLogstore,
    CreateProject,
    DeleteConsumerGroup,
    DeleteLogstore,
    DeleteProject,
    DeleteShard,
    GetCheckpoints,
    GetLogstore,
    GetProject,
    Heartbeat,
    ListConsumerGroups,
    ListLogstores,
    ListProjects,
    MergeShard,
    SetCheckpoint,
    SplitShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
    decode_cursor,
    encode_cursor,
)

JSON_BYTES_MAX: Final = 1 << 20
_Body = TypeVar("_Body")


def project_of(request: HttpRequest) -> str:
    if not request.project:
        raise InvalidParameter("no project is named: send it in Host, as project.endpoint")
    return request.project


def text_parameter(request: HttpRequest, name: str) -> str:
    value = request.parameters.get(name)
    if not value:
        raise InvalidParameter(f"the parameter {name} is missing")
    return value


def number_parameter(request: HttpRequest, name: str, default: int | None = None) -> int:
    value = request.parameters.get(name, "")
    if not value and default is not None:
        return default
    return number(value, name)


def number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidParameter(f"{name} {text[:40]!r} is no number: give 0 or more")
    return int(text)


def flag_parameter(request: HttpRequest, name: str) -> bool:
    """Reads a flag: Python's SDK writes `True`, others `true`."""
    value = request.parameters.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidParameter(f"{name} {value[:40]!r} is neither true nor false")
    return value == "true"


async def json_body(request: HttpRequest, kind: type[_Body]) -> _Body:
    """Decodes the body into a struct; ignores unknown fields."""
    body = await request.body(bytes_max=JSON_BYTES_MAX)
    check_body(request, body)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"the body cannot be read: {error}") from error


EMPTY = HttpResponse()
_PAGE = 100


async def control(gateway: Gateway, request: HttpRequest, call: AnyControl) -> Any:
    assert request.key is not None
    return await gateway.control(request.key, call)


def json_answer(value: Any) -> HttpResponse:
    return HttpResponse(body=msgspec.json.encode(value))


def logstore_of(request: HttpRequest) -> str:
    """Reads the logstore from `/logstores/NAME/...`."""
    return request.path.split("/", 3)[2]


class CatalogCalls:
    """Handlers for projects and logstores; `routes` maps paths to them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create_project(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, CreateProjectBody)
        if request.project and request.project != body.project_name:
            raise InvalidParameter(
                f"Host names project {request.project[:140]!r} and the body another: name the same"
            )
        call = CreateProject(project=body.project_name, description=body.description)
        await control(self._gateway, request, call)
        return EMPTY

    async def update_project(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, UpdateProjectBody)
        call = UpdateProject(project=project_of(request), description=body.description)
        await control(self._gateway, request, call)
        return EMPTY

    async def get_or_list_projects(self, request: HttpRequest) -> HttpResponse:
        """Lists projects if Host names none, or if the query has paging parameters: what looks like
        a project in Host may be the gateway's own name.
        """
        given = request.parameters
        if request.project and "offset" not in given and "size" not in given:
            project = await control(self._gateway, request, GetProject(project=request.project))
            return json_answer(project_answer(project))
        call = ListProjects(
            offset=number_parameter(request, "offset", 0),
            size=number_parameter(request, "size", _PAGE),
            contains=given.get("projectName", ""),
        )
        found = await control(self._gateway, request, call)
        projects = [project_answer(each) for each in found.projects]
        return json_answer(
            ProjectsAnswer(count=len(projects), total=found.total, projects=projects)
        )

    async def delete_project(self, request: HttpRequest) -> HttpResponse:
        await control(self._gateway, request, DeleteProject(project=project_of(request)))
        return EMPTY

    async def create_logstore(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, LogstoreBody)
        call = CreateLogstore(
            project=project_of(request),
            logstore=body.logstore_name,
            shard_count=2 if body.shard_count is None else body.shard_count,
            options=body.options(),
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def update_logstore(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, LogstoreBody)
        call = UpdateLogstore(
            project=project_of(request), logstore=logstore_of(request), options=body.options()
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def get_logstore(self, request: HttpRequest) -> HttpResponse:
        if "type" in request.parameters:
            raise InvalidParameter("logs are not searched here: pull them, or consume them")
        call = GetLogstore(project=project_of(request), logstore=logstore_of(request))
        return json_answer(logstore_answer(await control(self._gateway, request, call)))

    async def delete_logstore(self, request: HttpRequest) -> HttpResponse:
        call = DeleteLogstore(project=project_of(request), logstore=logstore_of(request))
        await control(self._gateway, request, call)
        return EMPTY

    async def list_logstores(self, request: HttpRequest) -> HttpResponse:
        call = ListLogstores(
            project=project_of(request),
            offset=number_parameter(request, "offset", 0),
            size=number_parameter(request, "size", _PAGE),
            contains=request.parameters.get("logstoreName", ""),
        )
        found = await control(self._gateway, request, call)
        names = found.logstores
        return json_answer(LogstoresAnswer(count=len(names), total=found.total, logstores=names))


_Held = Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...], Meta(max_length=SHARDS_MAX)]


def _group_of(request: HttpRequest) -> str:
    """Reads the group from `/logstores/NAME/consumergroups/GROUP`."""
    return request.path.split("/", 4)[4]


class GroupCalls:
    """Handlers for consumer groups; `routes` maps paths to them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, CreateGroupBody)
        call = CreateConsumerGroup(
            project=project_of(request),
            logstore=logstore_of(request),
            group=body.consumer_group,
            timeout_s=body.timeout,
            is_ordered=body.order,
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def list(self, request: HttpRequest) -> HttpResponse:
        call = ListConsumerGroups(project=project_of(request), logstore=logstore_of(request))
        found = await control(self._gateway, request, call)
        return json_answer([group_answer(each) for each in found])

    async def update(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, UpdateGroupBody)
        call = UpdateConsumerGroup(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            timeout_s=body.timeout,
            is_ordered=body.order,
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def delete(self, request: HttpRequest) -> HttpResponse:
        call = DeleteConsumerGroup(
            project=project_of(request), logstore=logstore_of(request), group=_group_of(request)
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def post(self, request: HttpRequest) -> HttpResponse:
        """Handles a heartbeat or a checkpoint."""
        match request.parameters.get("type"):
            case "heartbeat":
                return await self._heartbeat(request)
            case "checkpoint":
                return await self._set_checkpoint(request)
            case other:
                raise InvalidParameter(f"type {str(other)[:40]!r}: give heartbeat or checkpoint")

    async def _heartbeat(self, request: HttpRequest) -> HttpResponse:
        held = await json_body(request, _Held)
        call = Heartbeat(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            consumer=text_parameter(request, "consumer"),
            held=held,
        )
        return json_answer(await control(self._gateway, request, call))

    async def _set_checkpoint(self, request: HttpRequest) -> HttpResponse:
        body = await json_body(request, CheckpointBody)
        call = SetCheckpoint(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            consumer=request.parameters.get("consumer", ""),
            shard=body.shard,
            checkpoint=body.checkpoint,
            is_forced=flag_parameter(request, "forceSuccess"),
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def get_checkpoints(self, request: HttpRequest) -> HttpResponse:
        shard = number_parameter(request, "shard") if "shard" in request.parameters else None
        call = GetCheckpoints(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            shard=shard,
        )
        found = await control(self._gateway, request, call)
        return json_answer([checkpoint_answer(each) for each in found])


COUNT_MAX: Final = 1000
"""Limit of LogGroups in one pull, the same as SLS's."""
PULL_BYTES_MAX: Final = 5 << 20
WAIT_MS_MAX: Final = 30_000
_PROTOBUF: Final = b"application/x-protobuf"


def _shard_of(request: HttpRequest) -> int:
    """Reads the shard from `/logstores/NAME/shards/NUMBER`."""
    return number(request.path.split("/", 4)[4], "shard")


class StreamCalls:
    """Handlers for records and shards; `routes` maps paths to them."""

    def __init__(
        self, gateway: Gateway, *, body_bytes_max: int, bounds: DecodeBounds = DEFAULT_BOUNDS
    ) -> None:
        self._gateway = gateway
        self._streams = gateway.streams
        self._body_bytes_max = body_bytes_max
        self._bounds = bounds

    async def put(self, request: HttpRequest) -> HttpResponse:
        return await self._put(request, None)

    async def put_by_key(self, request: HttpRequest) -> HttpResponse:
        return await self._put(request, text_parameter(request, "key"))

    async def _put(self, request: HttpRequest, key: str | None) -> HttpResponse:
        project = project_of(request)
        self._allow(request, project, AccessRole.WRITER)
        raw_bytes = declared_raw_bytes(request, bytes_max=self._streams.limits.raw_bytes_max)
        body = await request.body(bytes_max=self._body_bytes_max)
        self._gateway.quotas.take(project, len(body))
        long_work = self._gateway.long_work
        await long_work.do(partial(check_body, request, body), size=len(body))
        request.reserve(raw_bytes)
        batch = await batch_of(
            request,
            body,
            self._gateway.decoding,
            long_work,
            raw_bytes=raw_bytes,
            bounds=self._bounds,
        )
        if batch is not None:
            await self._streams.put(project, logstore_of(request), batch, key=key)
        return EMPTY

    async def get_of_shard(self, request: HttpRequest) -> HttpResponse:
        """Handles a pull, a cursor, or a cursor's time."""
        project = project_of(request)
        self._allow(request, project, AccessRole.READER)
        match request.parameters.get("type"):
            case "log" | "logs":
                return await self._pull(request, project)
            case "cursor":
                return await self._cursor(request, project)
            case "cursor_time":
                return await self._cursor_time(request, project)
            case other:
                raise InvalidParameter(f"type {str(other)[:40]!r}: give log, cursor or cursor_time")

    async def _pull(self, request: HttpRequest, project: str) -> HttpResponse:
        given = request.parameters
        if given.get("query", "").strip() or given.get("processor"):
            raise InvalidParameter("logs are pulled as they are: leave out query and processor")
        end = given.get("end_cursor", "")
        wait_ms = min(number_parameter(request, "wait_ms", 0), WAIT_MS_MAX)
        pulling = self._streams.pull(
            project,
            logstore_of(request),
            _shard_of(request),
            decode_cursor(text_parameter(request, "cursor")),
            batches_max=min(max(number_parameter(request, "count", COUNT_MAX), 1), COUNT_MAX),
            bytes_max=PULL_BYTES_MAX,
            end=decode_cursor(end) if end else None,
            wait_ms=wait_ms,
        )
        pulled = await (request.unless_gone(pulling) if wait_ms else pulling)
        if ARROW in request.header(b"accept").lower():
            found, content_type = arrow_streams(pulled.batches, pulled.next), ARROW.encode()
            raw = framed(found.parts)
        else:
            found, content_type = log_groups(pulled.batches, pulled.next), _PROTOBUF
            raw = log_group_list(found.parts)
        body, name = compressed(raw, request.header(b"accept-encoding"))
        request.reserve(len(body))
        return HttpResponse(
            body=body,
            content_type=content_type,
            headers=(
                (b"x-log-count", b"%d" % len(found.parts)),
                (b"x-log-bodyrawsize", b"%d" % len(raw)),
                (b"x-log-cursor", encode_cursor(found.next).encode()),
                (b"x-log-compresstype", name),
            ),
        )

    async def _cursor(self, request: HttpRequest, project: str) -> HttpResponse:
        at: Literal["begin", "end"] | int
        match text_parameter(request, "from"):
            case "begin":
                at = "begin"
            case "end":
                at = "end"
            case text:
                at = number(text, "from")
        position = await self._streams.cursor(project, logstore_of(request), _shard_of(request), at)
        return json_answer(CursorAnswer(cursor=encode_cursor(position)))

    async def _cursor_time(self, request: HttpRequest, project: str) -> HttpResponse:
        position = decode_cursor(text_parameter(request, "cursor"))
        time_s = await self._streams.cursor_time(
            project, logstore_of(request), _shard_of(request), position
        )
        return json_answer(CursorTimeAnswer(cursor_time=time_s))

    async def list_shards(self, request: HttpRequest) -> HttpResponse:
        project = project_of(request)
        self._allow(request, project, AccessRole.READER)
        shards = await self._streams.shards(project, logstore_of(request))
        return json_answer([shard_answer(each) for each in shards])

    async def reshard(self, request: HttpRequest) -> HttpResponse:
        """Splits or merges a shard."""
        project, logstore, shard = project_of(request), logstore_of(request), _shard_of(request)
        match request.parameters.get("action"):
            case "split":
                key = request.parameters.get("key") or None
                call: SplitShard | MergeShard = SplitShard(
                    project=project, logstore=logstore, shard=shard, key=key
                )
            case "merge":
                call = MergeShard(project=project, logstore=logstore, shard=shard)
            case other:
                raise InvalidParameter(f"action {str(other)[:40]!r}: give split or merge")
        shards = await control(self._gateway, request, call)
        return json_answer([shard_answer(each) for each in shards])

    async def delete_shard(self, request: HttpRequest) -> HttpResponse:
        call = DeleteShard(
            project=project_of(request), logstore=logstore_of(request), shard=_shard_of(request)
        )
        await control(self._gateway, request, call)
        return EMPTY

    def _allow(self, request: HttpRequest, project: str, needed: AccessRole) -> None:
        assert request.key is not None
        check_role(request.key, project, needed)


class SlsRoutes:
    """A `RouteGroup`: `/` and all below `/logstores`."""

    name = "sls"

    def __init__(
        self,
        environment: Environment,
        gateway: Gateway,
        *,
        body_bytes_max: int,
        bounds: DecodeBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._clock = environment.clock
        self._access = gateway.access
        catalog = CatalogCalls(gateway)
        streams = StreamCalls(gateway, body_bytes_max=body_bytes_max, bounds=bounds)
        groups = GroupCalls(gateway)
        put = HttpRoute("put", streams.put)
        self._unknown = HttpRoute("unknown", _unknown)
        self._routes = {
            "POST /": HttpRoute("create_project", catalog.create_project),
            "PUT /": HttpRoute("update_project", catalog.update_project),
            "GET /": HttpRoute("get_or_list_projects", catalog.get_or_list_projects),
            "DELETE /": HttpRoute("delete_project", catalog.delete_project),
            "POST /logstores": HttpRoute("create_logstore", catalog.create_logstore),
            "GET /logstores": HttpRoute("list_logstores", catalog.list_logstores),
            "POST /logstores/*": put,
            "PUT /logstores/*": HttpRoute("update_logstore", catalog.update_logstore),
            "GET /logstores/*": HttpRoute("get_logstore", catalog.get_logstore),
            "DELETE /logstores/*": HttpRoute("delete_logstore", catalog.delete_logstore),
            "GET /logstores/*/shards": HttpRoute("list_shards", streams.list_shards),
            "POST /logstores/*/shards/lb": put,
            "POST /logstores/*/shards/route": HttpRoute("put_by_key", streams.put_by_key),
            "GET /logstores/*/shards/*": HttpRoute("pull", streams.get_of_shard),
            "POST /logstores/*/shards/*": HttpRoute("reshard", streams.reshard),
            "DELETE /logstores/*/shards/*": HttpRoute("delete_shard", streams.delete_shard),
            "POST /logstores/*/consumergroups": HttpRoute("create_group", groups.create),
            "GET /logstores/*/consumergroups": HttpRoute("list_groups", groups.list),
            "PUT /logstores/*/consumergroups/*": HttpRoute("update_group", groups.update),
            "DELETE /logstores/*/consumergroups/*": HttpRoute("delete_group", groups.delete),
            "POST /logstores/*/consumergroups/*": HttpRoute("post_to_group", groups.post),
            "GET /logstores/*/consumergroups/*": HttpRoute(
                "get_checkpoints", groups.get_checkpoints
            ),
        }

    def find(self, method: str, path: str) -> HttpRoute | None:
        if path not in ("/", "/logstores") and not path.startswith("/logstores/"):
            return None
        return self._routes.get(f"{method} {_shape(path)}", self._unknown)

    def authenticate(self, request: HttpRequest) -> AccessKey:
        return signing_key(request, self._access.key, self._clock)

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        return error_answer(error)


def _shape(path: str) -> str:
    """Returns the path with a star for each name in it."""
    parts = path.split("/")
    if len(parts) > 2 and parts[1] == "logstores":
        parts[2] = "*"
        if len(parts) == 5 and not (parts[3] == "shards" and parts[4] in ("lb", "route")):
            parts[4] = "*"
    return "/".join(parts)


async def _unknown(request: HttpRequest) -> HttpResponse:
    raise NotFound(f"SLS's API has no {request.method} {request.path[:200]}, or not here")
