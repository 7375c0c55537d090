"""The calls that change or list things: which role each takes, and who carries it out."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from raftwood.base.position import Position, parse_position
from raftwood.loghub.controls import (
    AnyControl,
    Checkpoint,
    ConsumerGroupView,
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
    LogstoreList,
    MergeShard,
    ProjectList,
    SetCheckpoint,
    SplitShard,
    TruncateShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
)
from raftwood.loghub.model import AccessKey, Role
from raftwood.loghub.server.access import EVERYWHERE, check_role
from raftwood.loghub.server.catalog import Catalog
from raftwood.loghub.server.retention import Required
from raftwood.loghub.server.streams import Streams

_READERS: Final = (
    GetProject,
    GetLogstore,
    ListLogstores,
    ListConsumerGroups,
    GetCheckpoints,
    Heartbeat,
    SetCheckpoint,
)
"""Who reads also says how far."""


class Groups(Protocol):
    """What is asked of consumer groups."""

    async def create(
        self, project: str, logstore: str, group: str, *, timeout_s: int, is_ordered: bool
    ) -> None: ...
    async def update(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int | None,
        is_ordered: bool | None,
    ) -> None: ...
    async def delete(self, project: str, logstore: str, group: str) -> None: ...
    async def groups(self, project: str, logstore: str) -> list[ConsumerGroupView]: ...
    async def heartbeat(
        self, project: str, logstore: str, group: str, *, consumer: str, held: Sequence[int]
    ) -> list[int]: ...
    async def set_checkpoint(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        shard: int,
        checkpoint: str,
        consumer: str,
        is_forced: bool,
    ) -> None: ...
    async def checkpoints(
        self, project: str, logstore: str, group: str, *, shard: int | None
    ) -> list[Checkpoint]: ...
    async def required_positions(self, project: str, logstore: str) -> dict[int, Required]: ...


class Controls:
    """Every protocol that a gateway speaks comes here with these calls."""

    def __init__(self, catalog: Catalog, streams: Streams, groups: Groups) -> None:
        self._catalog = catalog
        self._streams = streams
        self._groups = groups

    async def _truncate(
        self, project: str, logstore: str, shard: int, before: Position
    ) -> Position:
        """Never past the slowest registered reader; the first position after it."""
        required = (await self._groups.required_positions(project, logstore)).get(shard)
        if required is not None:
            before = min(before, Position(required.position))
        return await self._streams.truncate_shard(project, logstore, shard, before)

    async def carry_out(self, key: AccessKey, control: AnyControl) -> Any:
        """As the call's `answer` says."""
        if isinstance(control, ListProjects):
            return await self._list_projects(key, control)
        if isinstance(control, CreateProject | DeleteProject):
            # A right in one project says nothing of the next one of that name.
            check_role(key, EVERYWHERE, Role.ADMIN)
        else:
            needed = Role.READER if isinstance(control, _READERS) else Role.ADMIN
            check_role(key, control.project, needed)
        return await self._do(key, control)

    async def _list_projects(self, key: AccessKey, control: ListProjects) -> ProjectList:
        total, projects = await self._catalog.projects(
            offset=control.offset,
            size=control.size,
            contains=control.contains,
            is_seen=lambda each: key.role_in(each.name) is not None,
        )
        return ProjectList(total, projects)

    async def _do(self, key: AccessKey, control: AnyControl) -> Any:
        catalog, streams, groups = self._catalog, self._streams, self._groups
        project = control.project
        match control:
            case CreateProject(description=description):
                await catalog.create_project(project, description=description, owner=key.id)
            case UpdateProject():
                await catalog.update_project(
                    project,
                    description=control.description,
                    write_bytes_per_s_max=control.write_bytes_per_s_max,
                )
            case GetProject():
                return await catalog.project(project)
            case DeleteProject():
                await catalog.delete_project(project)
            case CreateLogstore(logstore=logstore):
                await catalog.create_logstore(
                    project,
                    logstore,
                    shard_count=control.shard_count,
                    log=control.log,
                    options=control.options,
                )
            case UpdateLogstore(logstore=logstore):
                await catalog.update_logstore(project, logstore, control.options)
            case GetLogstore(logstore=logstore):
                return await catalog.logstore(project, logstore)
            case DeleteLogstore(logstore=logstore):
                await catalog.delete_logstore(project, logstore)
            case ListLogstores():
                total, names = await catalog.logstores(
                    project,
                    offset=control.offset,
                    size=control.size,
                    contains=control.contains,
                )
                return LogstoreList(total, names)
            case SplitShard(logstore=logstore, shard=shard):
                return await streams.split(project, logstore, shard, control.key)
            case MergeShard(logstore=logstore, shard=shard):
                return await streams.merge(project, logstore, shard)
            case DeleteShard(logstore=logstore, shard=shard):
                await streams.delete_shard(project, logstore, shard)
            case TruncateShard(logstore=logstore, shard=shard):
                before = parse_position(control.before)
                return str(await self._truncate(project, logstore, shard, before))
            case CreateConsumerGroup(logstore=logstore, group=group):
                await groups.create(
                    project,
                    logstore,
                    group,
                    timeout_s=control.timeout_s,
                    is_ordered=control.is_ordered,
                )
            case UpdateConsumerGroup(logstore=logstore, group=group):
                await groups.update(
                    project,
                    logstore,
                    group,
                    timeout_s=control.timeout_s,
                    is_ordered=control.is_ordered,
                )
            case DeleteConsumerGroup(logstore=logstore, group=group):
                await groups.delete(project, logstore, group)
            case ListConsumerGroups(logstore=logstore):
                return await groups.groups(project, logstore)
            case Heartbeat(logstore=logstore, group=group):
                return await groups.heartbeat(
                    project, logstore, group, consumer=control.consumer, held=control.held
                )
            case SetCheckpoint(logstore=logstore, group=group):
                await groups.set_checkpoint(
                    project,
                    logstore,
                    group,
                    shard=control.shard,
                    checkpoint=control.checkpoint,
                    consumer=control.consumer,
                    is_forced=control.is_forced,
                )
            case GetCheckpoints(logstore=logstore, group=group):
                return await groups.checkpoints(project, logstore, group, shard=control.shard)
        return None
