"""`Gateway`: all parts of a gateway, over a metastore and logs that the caller passes in.

No gateway is special: their shared state is in the metastore, the records are in the logs.
`ControlService` carries out the calls that change or list things, after a check of the key's role.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final, Protocol

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.base.position import Position, parse_position
from raftwood.base.seams import Compare, Logs, MetaStore
from raftwood.loghub.model import AccessKey, AccessRole, LogKind
from raftwood.loghub.server.access import EVERYWHERE, AccessControl, Quotas, check_role
from raftwood.loghub.server.catalog import Catalog, LogstoreReconciler
from raftwood.loghub.server.consumer_groups import ConsumerGroups
from raftwood.loghub.server.idempotent_puts import IdempotentPuts
from raftwood.loghub.server.long_work import LongWork
from raftwood.loghub.server.metadata import Metadata
from raftwood.loghub.server.retention import RequiredPosition, Retention
from raftwood.loghub.server.streams import StreamLimits, StreamMetrics, Streams
from raftwood.loghub.settings import GatewaySettings, LogHubSettings
from raftwood.loghub.wire import (
    AnyControl,
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
    GroupCheckpoint,
    Heartbeat,
    ListConsumerGroups,
    ListLogstores,
    ListProjects,
    LogstoreList,
    MergeShard,
    ProjectList,
    SetCheckpoint,
    ShardDetail,
    SplitShard,
    TruncateShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
)
from raftwood.net.listeners import FairScheduler, TurnLimits

_READERS: Final = (
    GetProject,
    GetLogstore,
    ListLogstores,
    ListConsumerGroups,
    GetCheckpoints,
    Heartbeat,
    SetCheckpoint,
)
"""Calls that a reader may make: readers set checkpoints too."""


class ConsumerGroupCalls(Protocol):
    """What `ControlService` needs of consumer groups."""

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
    ) -> list[GroupCheckpoint]: ...
    async def required_positions(
        self, project: str, logstore: str
    ) -> dict[int, RequiredPosition]: ...


class ControlService:
    """Carries out the control calls of all protocols."""

    def __init__(self, catalog: Catalog, streams: Streams, groups: ConsumerGroupCalls) -> None:
        self._catalog = catalog
        self._streams = streams
        self._groups = groups

    async def _truncate(
        self, project: str, logstore: str, shard: int, before: Position
    ) -> Position:
        """Truncates, but not past the slowest registered reader; returns the first that is left."""
        required = (await self._groups.required_positions(project, logstore)).get(shard)
        if required is not None:
            before = min(before, Position(required.position))
        return await self._streams.truncate_shard(project, logstore, shard, before)

    async def carry_out(self, key: AccessKey, control: AnyControl) -> Any:
        """Carries out a call; returns the type that its `answer` names."""
        if isinstance(control, ListProjects):
            return await self._list_projects(key, control)
        if isinstance(control, CreateProject | DeleteProject):
            # A role in the deleted project must not count in a later one of its name.
            check_role(key, EVERYWHERE, AccessRole.ADMIN)
        else:
            needed = AccessRole.READER if isinstance(control, _READERS) else AccessRole.ADMIN
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


RECORD_BYTES_MAX: Final = 4 << 20
"""Limit of one entry of a log."""
DECODING: Final = TurnLimits(pieces_max=8, slice_pieces_max=1)
"""A piece is a slice of a request, which takes a millisecond or two."""


class Gateway:
    """Call `start` first, and `close` when done; the owners of metastore and logs close them."""

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        logs: Logs,
        *,
        settings: GatewaySettings,
        loghub: LogHubSettings,
        metrics: Metrics,
        record_bytes_max: int = RECORD_BYTES_MAX,
        log_kinds: Collection[LogKind] = (LogKind.LOGSERVICE,),
    ) -> None:
        self.long_work = LongWork(environment)
        self.metadata = Metadata(store)
        settling = LogstoreReconciler(environment, self.metadata, logs, self._forget)
        self.access = AccessControl(environment, self.metadata)
        self.catalog = Catalog(environment, self.metadata, settling, log_kinds)
        self.metrics = StreamMetrics(metrics)
        self.streams = Streams(
            environment,
            self.metadata,
            self.catalog,
            settling,
            logs,
            StreamLimits(record_bytes_max, settings.raw_bytes_max),
            self.metrics,
        )
        self.placed_puts = IdempotentPuts(self.streams, self.catalog, settling, logs)
        self.quotas = Quotas(
            environment,
            self.metadata,
            bytes_per_s_max=settings.write_bytes_per_s_max,
            requests_per_s_max=settings.write_requests_per_s_max,
        )
        metrics.pull_counter(
            "loghub_quota_refusals_total",
            "Puts that were refused for a project's quota.",
            lambda: self.quotas.refused,
        )
        metrics.pull_gauge(
            "loghub_metadata_fresh",
            "1 while changes of projects, logstores, shards and keys are heard of.",
            lambda: self.metadata.is_fresh,
        )
        self.groups = ConsumerGroups(environment, self.metadata, self.streams)
        self.retention = Retention(
            environment, self.metadata, self.streams, self.groups, settling, loghub, self.metrics
        )
        self._controls = ControlService(self.catalog, self.streams, self.groups)

    @cached_property
    def decoding(self) -> FairScheduler:
        """Schedules the decoding of all requests, a slice at a time: however many requests there
        are, a turn of the loop decodes only a few slices.
        """
        return FairScheduler(DECODING)

    async def start(self) -> None:
        await self.metadata.start()
        self.retention.start()

    async def close(self) -> None:
        await self.retention.close()
        await self.metadata.close()

    async def _forget(self, project: str, logstore: str, current: Compare) -> None:
        await self.groups.delete_all(project, logstore, current)
        await self.retention.forget(project, logstore, current)

    async def control(self, key: AccessKey, control: AnyControl) -> Any:
        """Carries out a call that changes or lists something, if the key may."""
        return await self._controls.carry_out(key, control)

    async def describe(self, project: str, logstore: str) -> list[ShardDetail]:
        """Returns for each shard the range of its records and the reader that it waits for."""
        required = await self.groups.required_positions(project, logstore)
        found = []
        for shard in await self.streams.shards(project, logstore):
            bounds = await self.streams.bounds(shard)
            needed = required.get(shard.id)
            found.append(
                ShardDetail(
                    shard=shard,
                    first=str(bounds.first),
                    next=str(bounds.next),
                    appended_bytes=bounds.appended_bytes,
                    required=None if needed is None else str(max(needed.position, bounds.first)),
                    required_by="" if needed is None else needed.group,
                )
            )
        return found
