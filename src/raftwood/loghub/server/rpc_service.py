"""The calls of native clients. Each is allowed by the role of the access key."""

from typing import Any, Literal, cast

from msgspec.structs import replace

from raftwood.base.errors import PermissionDenied
from raftwood.base.files import Buffer
from raftwood.base.position import position_from_bytes, position_to_bytes
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import AccessKey, AccessRole, Shard
from raftwood.loghub.server.access import check_role
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.wire import (
    CONTROL,
    CURSOR,
    DESCRIBE,
    PULL,
    PUT,
    SHARDS,
    CursorRequest,
    ShardDetail,
    StreamRequest,
    decode_control,
    decode_pull,
    decode_put,
    encode_control_answer,
    encode_pulled,
)
from raftwood.net import Call, Payload, Service


class RpcService:
    """Registers itself with a `Service`; the handshake has authenticated the key."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def register(self, service: Service) -> None:
        service.task(PUT, self._put)
        service.task(PULL, self._pull)
        service.task(CONTROL, self._control)
        service.typed(SHARDS, self._shards)
        service.typed(CURSOR, self._cursor)
        service.typed(DESCRIBE, self._describe)

    def _key(self, call: Call) -> AccessKey:
        key = self._gateway.access.key(call.peer.node_id)
        if key is None:
            raise PermissionDenied(f"key {call.peer.node_id} was revoked: ask for another one")
        return key

    async def _put(self, call: Call, payload: Payload) -> bytes:
        request = decode_put(payload)
        check_role(self._key(call), request.project, AccessRole.WRITER)
        self._gateway.quotas.take(request.project, len(request.batch.body))
        result = await self._gateway.streams.put(
            request.project,
            request.logstore,
            request.batch,
            shard=request.shard,
            producer=request.producer,
            sequence=request.sequence,
        )
        return position_to_bytes(result.position)

    async def _pull(self, call: Call, payload: Payload) -> list[Buffer]:
        request = decode_pull(payload)
        check_role(self._key(call), request.project, AccessRole.READER)
        pulled = await self._gateway.streams.pull(
            request.project,
            request.logstore,
            request.shard,
            position_from_bytes(request.start),
            batches_max=request.batches_max,
            bytes_max=request.bytes_max,
            wait_ms=request.wait_ms,
        )
        if request.heads_only:
            heads = [StoredBatch(each.position, each.data[:HEAD_BYTES]) for each in pulled.batches]
            pulled = replace(pulled, batches=heads)
        return encode_pulled(pulled)

    async def _shards(self, call: Call, request: StreamRequest) -> list[Shard]:
        check_role(self._key(call), request.project, AccessRole.READER)
        return await self._gateway.streams.shards(request.project, request.logstore)

    async def _cursor(self, call: Call, request: CursorRequest) -> bytes:
        check_role(self._key(call), request.project, AccessRole.READER)
        if isinstance(request.at, str) and request.at not in ("begin", "end"):
            raise InvalidParameter(f"cursor {request.at[:60]!r}: begin, end, or a time in seconds")
        at = cast("Literal['begin', 'end'] | int", request.at)
        position = await self._gateway.streams.cursor(
            request.project, request.logstore, request.shard, at
        )
        return position_to_bytes(position)

    async def _describe(self, call: Call, request: StreamRequest) -> list[ShardDetail]:
        check_role(self._key(call), request.project, AccessRole.READER)
        return await self._gateway.describe(request.project, request.logstore)

    async def _control(self, call: Call, payload: Payload) -> bytes:
        answer: Any = await self._gateway.control(self._key(call), decode_control(payload))
        return encode_control_answer(answer)
