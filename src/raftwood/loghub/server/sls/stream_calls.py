"""SLS's calls about what is in a logstore: puts, pulls, cursors and shards."""

from functools import partial
from typing import Final, Literal

from raftwood.loghub.controls import DeleteShard, MergeShard, SplitShard
from raftwood.loghub.cursors import decode_cursor, encode_cursor
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, DecodeBounds
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import Role
from raftwood.loghub.server.access import check_role
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer
from raftwood.loghub.server.sls.bodies import ARROW, batch_of, declared_raw_bytes
from raftwood.loghub.server.sls.catalog_calls import EMPTY, control, json_answer, logstore_of
from raftwood.loghub.server.sls.login import check_body
from raftwood.loghub.server.sls.messages import CursorAnswer, CursorTimeAnswer, shard_answer
from raftwood.loghub.server.sls.parameters import (
    number,
    number_parameter,
    project_of,
    text_parameter,
)
from raftwood.loghub.server.sls.pulls import (
    arrow_streams,
    compressed,
    framed,
    log_group_list,
    log_groups,
)

COUNT_MAX: Final = 1000
"""LogGroups of one pull, as SLS has it."""
PULL_BYTES_MAX: Final = 5 << 20
WAIT_MS_MAX: Final = 30_000
_PROTOBUF: Final = b"application/x-protobuf"


def _shard_of(request: Request) -> int:
    """From `/logstores/NAME/shards/NUMBER`."""
    return number(request.path.split("/", 4)[4], "shard")


class StreamCalls:
    """Each is a handler; paths are matched in `routes`."""

    def __init__(
        self, gateway: Gateway, *, body_bytes_max: int, bounds: DecodeBounds = DEFAULT_BOUNDS
    ) -> None:
        self._gateway = gateway
        self._streams = gateway.streams
        self._body_bytes_max = body_bytes_max
        self._bounds = bounds

    async def put(self, request: Request) -> Answer:
        return await self._put(request, None)

    async def put_by_key(self, request: Request) -> Answer:
        return await self._put(request, text_parameter(request, "key"))

    async def _put(self, request: Request, key: str | None) -> Answer:
        project = project_of(request)
        self._allow(request, project, Role.WRITER)
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

    async def get_of_shard(self, request: Request) -> Answer:
        """A pull, a cursor, or a cursor's time."""
        project = project_of(request)
        self._allow(request, project, Role.READER)
        match request.parameters.get("type"):
            case "log" | "logs":
                return await self._pull(request, project)
            case "cursor":
                return await self._cursor(request, project)
            case "cursor_time":
                return await self._cursor_time(request, project)
            case other:
                raise InvalidParameter(f"type {str(other)[:40]!r}: give log, cursor or cursor_time")

    async def _pull(self, request: Request, project: str) -> Answer:
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
        return Answer(
            body=body,
            content_type=content_type,
            headers=(
                (b"x-log-count", b"%d" % len(found.parts)),
                (b"x-log-bodyrawsize", b"%d" % len(raw)),
                (b"x-log-cursor", encode_cursor(found.next).encode()),
                (b"x-log-compresstype", name),
            ),
        )

    async def _cursor(self, request: Request, project: str) -> Answer:
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

    async def _cursor_time(self, request: Request, project: str) -> Answer:
        position = decode_cursor(text_parameter(request, "cursor"))
        time_s = await self._streams.cursor_time(
            project, logstore_of(request), _shard_of(request), position
        )
        return json_answer(CursorTimeAnswer(cursor_time=time_s))

    async def list_shards(self, request: Request) -> Answer:
        project = project_of(request)
        self._allow(request, project, Role.READER)
        shards = await self._streams.shards(project, logstore_of(request))
        return json_answer([shard_answer(each) for each in shards])

    async def reshard(self, request: Request) -> Answer:
        """Split or merge a shard."""
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

    async def delete_shard(self, request: Request) -> Answer:
        call = DeleteShard(
            project=project_of(request), logstore=logstore_of(request), shard=_shard_of(request)
        )
        await control(self._gateway, request, call)
        return EMPTY

    def _allow(self, request: Request, project: str, needed: Role) -> None:
        assert request.key is not None
        check_role(request.key, project, needed)
