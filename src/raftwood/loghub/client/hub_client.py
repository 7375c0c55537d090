"""`AsyncLogHubClient`: projects, logstores, shards, groups; the way to producers and readers.

async with await AsyncLogHubClient.connect(
    environment, "127.0.0.1:7401,127.0.0.1:7402", access_key=KEY_ID, access_secret=SECRET
) as client:
    await client.create_logstore("web", "access", shard_count=4)
    async with client.producer("web", "access") as producer: ...
    async with client.reader("web", "access") as reader:
        async for record in reader: ...
"""

from collections.abc import Sequence
from typing import Any, Final, Self

from raftwood.base.environment import Environment
from raftwood.base.position import Position, parse_position, position_from_bytes
from raftwood.loghub.batches import Batch
from raftwood.loghub.client.gateways import Gateways, HubAccess, addresses_of
from raftwood.loghub.client.producer import AsyncProducer, ProducerSettings
from raftwood.loghub.client.pulled_batches import pull
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings, Start
from raftwood.loghub.client.reader_checkpoints import ReaderCheckpoints
from raftwood.loghub.model import LogKind, Logstore, Project, Shard
from raftwood.loghub.wire import (
    CURSOR,
    DESCRIBE,
    PUT,
    SHARDS,
    AnyControl,
    ConsumerGroupView,
    CreateConsumerGroup,
    CreateLogstore,
    CreateProject,
    CursorRequest,
    DeleteConsumerGroup,
    DeleteLogstore,
    DeleteProject,
    DeleteShard,
    GetCheckpoints,
    GetLogstore,
    GetProject,
    GroupCheckpoint,
    ListConsumerGroups,
    ListLogstores,
    ListProjects,
    LogstoreList,
    LogstoreOptions,
    MergeShard,
    ProjectList,
    Pulled,
    PutRequest,
    SetCheckpoint,
    ShardDetail,
    SplitShard,
    StreamRequest,
    TruncateShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
    encode_cursor,
    encode_put,
)
from raftwood.net import ClientTls, Secret

TIMEOUT_MS: Final = 15_000


class AsyncLogHubClient:
    """Call `connect`, and `close` when done, or use `async with`."""

    def __init__(self, environment: Environment, gateways: Gateways, *, timeout_ms: int) -> None:
        self._environment = environment
        self._gateways = gateways
        self._timeout_ms = timeout_ms

    @classmethod
    async def connect(
        cls,
        environment: Environment,
        addresses: str | Sequence[str],
        *,
        access_key: str,
        access_secret: str | bytes,
        tls: ClientTls | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Self:
        """Returns a client once one gateway has answered; `addresses` are HOST:PORT[,…]."""
        access = HubAccess(
            addresses=addresses_of(addresses),
            access_key=access_key,
            access_secret=Secret(access_secret).as_key(),
            tls=tls,
        )
        gateways = Gateways(environment, access)
        try:
            await gateways.start(timeout_ms)
        except BaseException:
            await gateways.close()
            raise
        return cls(environment, gateways, timeout_ms=timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Close producers and readers first."""
        await self._gateways.close()

    async def _do(self, control: AnyControl) -> Any:
        return await self._gateways.control(control, timeout_ms=self._timeout_ms)

    # Records

    def producer(
        self, project: str, logstore: str, *, settings: ProducerSettings | None = None
    ) -> AsyncProducer:
        return AsyncProducer(
            self._environment,
            self._gateways,
            project=project,
            logstore=logstore,
            settings=settings,
        )

    def reader(
        self,
        project: str,
        logstore: str,
        *,
        shard: int | None = None,
        start: Start = "begin",
        follow: bool = False,
        group: str | None = None,
        settings: ReaderSettings | None = None,
    ) -> AsyncReader:
        """Returns a reader of one shard, or of all of a logstore; see `AsyncReader`."""
        return AsyncReader(
            self._gateways,
            project=project,
            logstore=logstore,
            shard=shard,
            start=start,
            follow=follow,
            group=group,
            settings=settings,
        )

    # Projects

    async def create_project(self, project: str, *, description: str = "") -> None:
        await self._do(CreateProject(project=project, description=description))

    async def update_project(
        self,
        project: str,
        *,
        description: str | None = None,
        write_bytes_per_s_max: int | None = None,
    ) -> None:
        await self._do(
            UpdateProject(
                project=project,
                description=description,
                write_bytes_per_s_max=write_bytes_per_s_max,
            )
        )

    async def project(self, project: str) -> Project:
        found: Project = await self._do(GetProject(project=project))
        return found

    async def projects(
        self, *, offset: int = 0, size: int = 100, contains: str = ""
    ) -> ProjectList:
        found: ProjectList = await self._do(
            ListProjects(offset=offset, size=size, contains=contains)
        )
        return found

    async def delete_project(self, project: str) -> None:
        await self._do(DeleteProject(project=project))

    # Logstores

    async def create_logstore(
        self,
        project: str,
        logstore: str,
        *,
        shard_count: int = 2,
        log: LogKind = LogKind.LOGSERVICE,
        options: LogstoreOptions | None = None,
    ) -> None:
        await self._do(
            CreateLogstore(
                project=project,
                logstore=logstore,
                shard_count=shard_count,
                log=log,
                options=options or LogstoreOptions(),
            )
        )

    async def update_logstore(self, project: str, logstore: str, options: LogstoreOptions) -> None:
        await self._do(UpdateLogstore(project=project, logstore=logstore, options=options))

    async def logstore(self, project: str, logstore: str) -> Logstore:
        found: Logstore = await self._do(GetLogstore(project=project, logstore=logstore))
        return found

    async def logstores(
        self, project: str, *, offset: int = 0, size: int = 100, contains: str = ""
    ) -> LogstoreList:
        found: LogstoreList = await self._do(
            ListLogstores(project=project, offset=offset, size=size, contains=contains)
        )
        return found

    async def delete_logstore(self, project: str, logstore: str) -> None:
        await self._do(DeleteLogstore(project=project, logstore=logstore))

    # Shards

    async def shards(self, project: str, logstore: str) -> list[Shard]:
        return await self._gateways.ask(
            SHARDS, StreamRequest(project, logstore), timeout_ms=self._timeout_ms
        )

    async def describe(self, project: str, logstore: str) -> list[ShardDetail]:
        """Returns for each shard the range of its records and the reader that it waits for."""
        return await self._gateways.ask(
            DESCRIBE, StreamRequest(project, logstore), timeout_ms=self._timeout_ms
        )

    async def cursor(self, project: str, logstore: str, *, shard: int, at: int | str) -> Position:
        """Returns a shard's `begin`, its `end`, or the position of a time in seconds since 1970."""
        request = CursorRequest(project, logstore, shard, at)
        found = await self._gateways.ask(CURSOR, request, timeout_ms=self._timeout_ms)
        return position_from_bytes(found)

    async def pull(
        self,
        project: str,
        logstore: str,
        *,
        shard: int,
        position: Position,
        batches_max: int = 1_000,
        bytes_max: int = 2 << 20,
        wait_ms: int = 0,
    ) -> Pulled:
        """Returns stored batches of a shard from a position on; a reader is easier to use."""
        return await pull(
            self._gateways,
            StreamRequest(project, logstore),
            shard=shard,
            position=position,
            batches_max=batches_max,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            timeout_ms=self._timeout_ms + wait_ms,
        )

    async def put(
        self,
        project: str,
        logstore: str,
        batch: Batch,
        *,
        shard: int,
        producer: str,
        sequence: int,
    ) -> Position:
        """Stores a batch under the caller's own producer name and sequence. The same one again is
        stored once; one too far behind the producer's last is refused (`SequenceForgotten`).
        """
        request = PutRequest(project, logstore, shard, producer, sequence, batch)
        payload = await self._gateways.call(
            PUT, encode_put(request), timeout_ms=self._timeout_ms, turn=shard
        )
        return position_from_bytes(bytes(payload))

    def checkpoints_of(self, project: str, logstore: str, group: str) -> ReaderCheckpoints:
        """Returns access to a group's checkpoints, for a caller that is not a reader."""
        return ReaderCheckpoints(self._gateways, project, logstore, group)

    async def split_shard(
        self, project: str, logstore: str, *, shard: int, key: str | None = None
    ) -> list[Shard]:
        """Splits a shard at a key or in the middle; returns the shards that changed."""
        found: list[Shard] = await self._do(
            SplitShard(project=project, logstore=logstore, shard=shard, key=key)
        )
        return found

    async def merge_shard(self, project: str, logstore: str, *, shard: int) -> list[Shard]:
        """Merges a shard with the one whose range follows; returns the shards that changed."""
        found: list[Shard] = await self._do(
            MergeShard(project=project, logstore=logstore, shard=shard)
        )
        return found

    async def delete_shard(self, project: str, logstore: str, *, shard: int) -> None:
        await self._do(DeleteShard(project=project, logstore=logstore, shard=shard))

    async def truncate_shard(
        self, project: str, logstore: str, *, shard: int, before: Position
    ) -> Position:
        """Frees all batches before a position, except those that a registered reader needs; returns
        the first position that is left.
        """
        first: str = await self._do(
            TruncateShard(project=project, logstore=logstore, shard=shard, before=str(before))
        )
        return parse_position(first)

    # Consumer groups

    async def create_group(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int = 60,
        is_ordered: bool = True,
    ) -> None:
        await self._do(
            CreateConsumerGroup(
                project=project,
                logstore=logstore,
                group=group,
                timeout_s=timeout_s,
                is_ordered=is_ordered,
            )
        )

    async def update_group(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int | None = None,
        is_ordered: bool | None = None,
    ) -> None:
        await self._do(
            UpdateConsumerGroup(
                project=project,
                logstore=logstore,
                group=group,
                timeout_s=timeout_s,
                is_ordered=is_ordered,
            )
        )

    async def groups(self, project: str, logstore: str) -> list[ConsumerGroupView]:
        found: list[ConsumerGroupView] = await self._do(
            ListConsumerGroups(project=project, logstore=logstore)
        )
        return found

    async def delete_group(self, project: str, logstore: str, group: str) -> None:
        await self._do(DeleteConsumerGroup(project=project, logstore=logstore, group=group))

    async def checkpoints(
        self, project: str, logstore: str, group: str, *, shard: int | None = None
    ) -> list[GroupCheckpoint]:
        found: list[GroupCheckpoint] = await self._do(
            GetCheckpoints(project=project, logstore=logstore, group=group, shard=shard)
        )
        return found

    async def set_checkpoint(
        self, project: str, logstore: str, group: str, *, shard: int, position: int
    ) -> None:
        """Sets what a group reads next of a shard, even if a consumer has the shard."""
        await self._do(
            SetCheckpoint(
                project=project,
                logstore=logstore,
                group=group,
                consumer="",
                shard=shard,
                checkpoint=encode_cursor(position),
                is_forced=True,
            )
        )
