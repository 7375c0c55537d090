"""`LogHubClient`: LogHub for programs without an event loop.

    with LogHubClient.connect("127.0.0.1:7401", access_key=KEY_ID, access_secret=SECRET) as client:
        with client.producer("web", "access") as producer:
            producer.send({"message": "hello"})
        for record in client.reader("web", "access"): ...

A thin facade: the real client runs on an event loop in a thread of its own, and any number of
threads may call it. The calls mean what they do in `AsyncLogHubClient` and `AsyncReader`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from raftwood.base.position import Position
from raftwood.disk.loop_thread import LoopThread
from raftwood.loghub.client.hub_client import TIMEOUT_MS, AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, ProducerSettings
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
from raftwood.loghub.client.reader import (
    TABLE_BYTES_MAX,
    TABLE_RECORDS_MAX,
    AsyncReader,
    ReaderSettings,
    Start,
)
from raftwood.loghub.client.sync_producer import Producer
from raftwood.loghub.model import LogKind, Logstore, Project, Shard
from raftwood.loghub.wire import (
    ConsumerGroupView,
    GroupCheckpoint,
    LogstoreList,
    LogstoreOptions,
    ProjectList,
    ShardDetail,
)
from raftwood.net import ClientTls

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Reader:
    """Made by `LogHubClient.reader`; its calls do the same as those of `AsyncReader`."""

    def __init__(self, thread: LoopThread, reader: AsyncReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def positions(self) -> dict[int, Position]:
        """Returns for each shard the position behind the batches that were handed out whole."""
        return dict(self._reader.positions)

    @property
    def freed(self) -> int:
        """Returns how often records were freed before they were read."""
        return self._reader.freed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.call(self._reader.close())

    def __iter__(self) -> Iterator[LogRecord]:
        # Decoded in this thread, while the loop's thread reads ahead.
        while (batch := self._thread.call(self._reader.take_batch())) is not None:
            records = batch.records()
            yield from records[:-1]
            self._reader.note(batch)
            yield from records[-1:]

    def batches(self) -> Iterator[PulledBatch]:
        """Iterates over stored batches."""
        while (batch := self._thread.call(self._reader.next_batch())) is not None:
            yield batch

    def to_arrow(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pyarrow.Table":
        """Returns what follows, up to the batch that reaches a bound; call again for the rest."""
        return self._thread.call(
            self._reader.to_arrow(records_max=records_max, bytes_max=bytes_max)
        )

    def to_pandas(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pandas.DataFrame":
        return self._thread.call(
            self._reader.to_pandas(records_max=records_max, bytes_max=bytes_max)
        )

    def to_polars(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "polars.DataFrame":
        return self._thread.call(
            self._reader.to_polars(records_max=records_max, bytes_max=bytes_max)
        )

    def commit(self) -> None:
        """Commits for the group what was handed out so far."""
        self._thread.call(self._reader.commit())


class LogHubClient:
    """Call `connect`, and `close` when done, or use a `with` block."""

    def __init__(self, thread: LoopThread, client: AsyncLogHubClient) -> None:
        self._thread = thread
        self._client = client

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        access_key: str,
        access_secret: str | bytes,
        tls: ClientTls | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Self:
        """Returns a client once one gateway has answered; `addresses` are HOST:PORT[,…]."""
        return cls(
            *LoopThread.with_client(
                "raftwood-loghub-client",
                lambda environment: AsyncLogHubClient.connect(
                    environment,
                    addresses,
                    access_key=access_key,
                    access_secret=access_secret,
                    tls=tls,
                    timeout_ms=timeout_ms,
                ),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Close producers and readers first."""
        self._thread.stop(self._client.close)

    # Records

    def producer(
        self, project: str, logstore: str, *, settings: ProducerSettings | None = None
    ) -> Producer:
        async def make() -> AsyncProducer:
            return self._client.producer(project, logstore, settings=settings)

        return Producer(self._thread, self._thread.call(make()))

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
    ) -> Reader:
        """Returns a reader of one shard, or of all of a logstore; see `AsyncReader`."""

        async def make() -> AsyncReader:
            return self._client.reader(
                project,
                logstore,
                shard=shard,
                start=start,
                follow=follow,
                group=group,
                settings=settings,
            )

        return Reader(self._thread, self._thread.call(make()))

    # Projects

    def create_project(self, project: str, *, description: str = "") -> None:
        self._thread.call(self._client.create_project(project, description=description))

    def update_project(
        self,
        project: str,
        *,
        description: str | None = None,
        write_bytes_per_s_max: int | None = None,
    ) -> None:
        self._thread.call(
            self._client.update_project(
                project, description=description, write_bytes_per_s_max=write_bytes_per_s_max
            )
        )

    def project(self, project: str) -> Project:
        return self._thread.call(self._client.project(project))

    def projects(self, *, offset: int = 0, size: int = 100, contains: str = "") -> ProjectList:
        return self._thread.call(self._client.projects(offset=offset, size=size, contains=contains))

    def delete_project(self, project: str) -> None:
        self._thread.call(self._client.delete_project(project))

    # Logstores

    def create_logstore(
        self,
        project: str,
        logstore: str,
        *,
        shard_count: int = 2,
        log: LogKind = LogKind.LOGSERVICE,
        options: LogstoreOptions | None = None,
    ) -> None:
        self._thread.call(
            self._client.create_logstore(
                project, logstore, shard_count=shard_count, log=log, options=options
            )
        )

    def update_logstore(self, project: str, logstore: str, options: LogstoreOptions) -> None:
        self._thread.call(self._client.update_logstore(project, logstore, options))

    def logstore(self, project: str, logstore: str) -> Logstore:
        return self._thread.call(self._client.logstore(project, logstore))

    def logstores(
        self, project: str, *, offset: int = 0, size: int = 100, contains: str = ""
    ) -> LogstoreList:
        return self._thread.call(
            self._client.logstores(project, offset=offset, size=size, contains=contains)
        )

    def delete_logstore(self, project: str, logstore: str) -> None:
        self._thread.call(self._client.delete_logstore(project, logstore))

    # Shards

    def shards(self, project: str, logstore: str) -> list[Shard]:
        return self._thread.call(self._client.shards(project, logstore))

    def describe(self, project: str, logstore: str) -> list[ShardDetail]:
        """Returns for each shard the range of its records and the reader that it waits for."""
        return self._thread.call(self._client.describe(project, logstore))

    def cursor(self, project: str, logstore: str, *, shard: int, at: int | str) -> Position:
        """Returns a shard's `begin`, its `end`, or the position of a time in seconds since 1970."""
        return self._thread.call(self._client.cursor(project, logstore, shard=shard, at=at))

    def split_shard(
        self, project: str, logstore: str, *, shard: int, key: str | None = None
    ) -> list[Shard]:
        """Splits a shard at a key or in the middle; returns the shards that changed."""
        return self._thread.call(self._client.split_shard(project, logstore, shard=shard, key=key))

    def merge_shard(self, project: str, logstore: str, *, shard: int) -> list[Shard]:
        """Merges a shard with the one whose range follows; returns the shards that changed."""
        return self._thread.call(self._client.merge_shard(project, logstore, shard=shard))

    def delete_shard(self, project: str, logstore: str, *, shard: int) -> None:
        self._thread.call(self._client.delete_shard(project, logstore, shard=shard))

    def truncate_shard(
        self, project: str, logstore: str, *, shard: int, before: Position
    ) -> Position:
        return self._thread.call(
            self._client.truncate_shard(project, logstore, shard=shard, before=before)
        )

    # Consumer groups

    def create_group(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int = 60,
        is_ordered: bool = True,
    ) -> None:
        self._thread.call(
            self._client.create_group(
                project, logstore, group, timeout_s=timeout_s, is_ordered=is_ordered
            )
        )

    def update_group(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int | None = None,
        is_ordered: bool | None = None,
    ) -> None:
        self._thread.call(
            self._client.update_group(
                project, logstore, group, timeout_s=timeout_s, is_ordered=is_ordered
            )
        )

    def groups(self, project: str, logstore: str) -> list[ConsumerGroupView]:
        return self._thread.call(self._client.groups(project, logstore))

    def delete_group(self, project: str, logstore: str, group: str) -> None:
        self._thread.call(self._client.delete_group(project, logstore, group))

    def checkpoints(
        self, project: str, logstore: str, group: str, *, shard: int | None = None
    ) -> list[GroupCheckpoint]:
        return self._thread.call(self._client.checkpoints(project, logstore, group, shard=shard))

    def set_checkpoint(
        self, project: str, logstore: str, group: str, *, shard: int, position: int
    ) -> None:
        """Sets what a group reads next of a shard, even if a consumer has the shard."""
        self._thread.call(
            self._client.set_checkpoint(project, logstore, group, shard=shard, position=position)
        )
