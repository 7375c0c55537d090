"""SLS's calls about consumer groups, their members and their checkpoints."""

from typing import Annotated

from msgspec import Meta

from raftwood.loghub.controls import (
    CreateConsumerGroup,
    DeleteConsumerGroup,
    GetCheckpoints,
    Heartbeat,
    ListConsumerGroups,
    SetCheckpoint,
    UpdateConsumerGroup,
)
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import SHARDS_MAX
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer
from raftwood.loghub.server.sls.catalog_calls import EMPTY, control, json_answer, logstore_of
from raftwood.loghub.server.sls.messages import (
    CheckpointBody,
    CreateGroupBody,
    UpdateGroupBody,
    checkpoint_answer,
    group_answer,
)
from raftwood.loghub.server.sls.parameters import (
    flag_parameter,
    json_body,
    number_parameter,
    project_of,
    text_parameter,
)

_Held = Annotated[tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...], Meta(max_length=SHARDS_MAX)]


def _group_of(request: Request) -> str:
    """From `/logstores/NAME/consumergroups/GROUP`."""
    return request.path.split("/", 4)[4]


class GroupCalls:
    """Each is a handler; paths are matched in `routes`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Answer:
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

    async def list(self, request: Request) -> Answer:
        call = ListConsumerGroups(project=project_of(request), logstore=logstore_of(request))
        found = await control(self._gateway, request, call)
        return json_answer([group_answer(each) for each in found])

    async def update(self, request: Request) -> Answer:
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

    async def delete(self, request: Request) -> Answer:
        call = DeleteConsumerGroup(
            project=project_of(request), logstore=logstore_of(request), group=_group_of(request)
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def post(self, request: Request) -> Answer:
        """A heartbeat or a checkpoint."""
        match request.parameters.get("type"):
            case "heartbeat":
                return await self._heartbeat(request)
            case "checkpoint":
                return await self._set_checkpoint(request)
            case other:
                raise InvalidParameter(f"type {str(other)[:40]!r}: give heartbeat or checkpoint")

    async def _heartbeat(self, request: Request) -> Answer:
        held = await json_body(request, _Held)
        call = Heartbeat(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            consumer=text_parameter(request, "consumer"),
            held=held,
        )
        return json_answer(await control(self._gateway, request, call))

    async def _set_checkpoint(self, request: Request) -> Answer:
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

    async def get_checkpoints(self, request: Request) -> Answer:
        shard = number_parameter(request, "shard") if "shard" in request.parameters else None
        call = GetCheckpoints(
            project=project_of(request),
            logstore=logstore_of(request),
            group=_group_of(request),
            shard=shard,
        )
        found = await control(self._gateway, request, call)
        return json_answer([checkpoint_answer(each) for each in found])
