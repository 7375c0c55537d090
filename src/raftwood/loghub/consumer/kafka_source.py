"""A Kafka topic as a source: its partitions are shards, offsets are positions.

Leases and checkpoints stay in the lease store; Kafka's own consumer groups are not used. Each
partition has a connection of its own, whose calls run in a thread of a bounded pool.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import confluent_kafka
import msgspec

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.loghub.consumer.source import ShardRead, SourceShard

Result = TypeVar("Result")
TIMEOUT_S: Final = 10.0


class KafkaRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of a topic."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: Sequence[tuple[str, bytes | None]]
    partition: int
    offset: int


class KafkaBatch(msgspec.Struct, frozen=True):
    """Records that one read returned."""

    shard_id: str
    messages: Sequence[Any]

    @property
    def next_position(self) -> str:
        return str(self.messages[-1].offset() + 1)

    @property
    def size_bytes(self) -> int:
        return sum(len(each) for each in self.messages)

    @property
    def received_ms(self) -> int:
        time_ms: int = self.messages[0].timestamp()[1]
        return max(0, time_ms)

    def records(self) -> Sequence[KafkaRecord]:
        return [
            KafkaRecord(
                each.key(),
                each.value(),
                each.timestamp()[1],
                each.headers() or (),
                each.partition(),
                each.offset(),
            )
            for each in self.messages
        ]


class KafkaSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one read, and of reads at once."""

    read_records_max: int = 1_000
    wait_ms: int = 1_000
    """How long a read at the end of a partition waits for more."""
    partitions_max: int = 64
    """Partitions that one worker reads at once, each in a thread."""


class KafkaSource:
    """Reads one topic; use `async with`, or `close` it. `options` are those of librdkafka."""

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        options: Mapping[str, Any] | None = None,
        settings: KafkaSourceSettings | None = None,
    ) -> None:
        self._topic = topic
        self._options = {
            **(options or {}),
            "bootstrap.servers": servers,
            "group.id": "raftwood-leases",  # librdkafka requires one; no group is joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        self._settings = settings or KafkaSourceSettings()
        self._threads = ThreadPoolExecutor(
            self._settings.partitions_max + 1, thread_name_prefix="raftwood-kafka"
        )
        self._admin = confluent_kafka.Consumer(self._options)
        self._partitions: dict[str, _Partition] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for shard in list(self._partitions):
            self.leave(shard)
        if self._closing:
            await asyncio.wait(self._closing)
        await self._in_thread(self._admin.close)
        self._threads.shutdown(wait=False)

    def leave(self, shard: str) -> None:
        """Closes its connection, which would go on reading ahead."""
        partition = self._partitions.pop(shard, None)
        if partition is not None:
            closing = asyncio.create_task(self._close(partition))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close(self, partition: "_Partition") -> None:
        await partition.settle()
        with suppress(Unavailable):
            await self._in_thread(partition.consumer.close)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except confluent_kafka.KafkaException as error:
            raise Unavailable(f"Kafka topic {self._topic}: {error}") from error

    async def list_shards(self) -> Sequence[SourceShard]:
        found = await self._in_thread(
            lambda: self._admin.list_topics(self._topic, timeout=TIMEOUT_S).topics[self._topic]
        )
        if found.error is not None:
            raise Unavailable(f"Kafka topic {self._topic}: {found.error}")
        return [SourceShard(str(number)) for number in sorted(found.partitions)]

    async def begin(self, shard: str) -> str:
        return str((await self._offsets(shard))[0])

    async def end(self, shard: str) -> str:
        return str((await self._offsets(shard))[1])

    async def _offsets(self, shard: str) -> tuple[int, int]:
        place = confluent_kafka.TopicPartition(self._topic, int(shard))
        found: tuple[int, int] = await self._in_thread(
            lambda: self._admin.get_watermark_offsets(place, timeout=TIMEOUT_S)
        )
        return found

    async def next_received_ms(self, shard: str, position: str) -> int | None:
        if int(position) >= (await self._offsets(shard))[1]:
            return None
        read = await self.read(shard, position)
        return read.batches[0].received_ms if read.batches else None

    async def read(self, shard: str, position: str) -> ShardRead:
        partition = self._partitions.get(shard)
        if partition is None:
            consumer = confluent_kafka.Consumer(self._options)
            partition = self._partitions[shard] = _Partition(consumer)
        await partition.settle()
        wait_s = self._settings.wait_ms / 1000
        count = self._settings.read_records_max

        def consume() -> list[Any]:
            if partition.offset != int(position):
                place = confluent_kafka.TopicPartition(self._topic, int(shard), int(position))
                partition.consumer.assign([place])
            # Unknown until the call has ended: a caller that gives up waiting seeks anew.
            partition.offset = -1
            first: list[Any] = partition.consumer.consume(1, wait_s)
            return first + partition.consumer.consume(count - 1, 0) if first else first

        partition.under_way = asyncio.create_task(self._in_thread(consume))
        messages = await asyncio.shield(partition.under_way)
        for message in messages:
            if message.error() is not None:
                raise _error(self._topic, shard, message.error())
        if not messages:
            partition.offset = int(position)
            return ShardRead([], position)
        batch = KafkaBatch(shard, messages)
        partition.offset = int(batch.next_position)
        return ShardRead([batch], batch.next_position)


class _Partition:
    """A connection, and the offset that it reads next."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.offset = -1
        self.under_way: asyncio.Future[list[Any]] | None = None

    async def settle(self) -> None:
        """Waits for the end of a call whose caller gave up."""
        if self.under_way is not None and not self.under_way.done():
            await asyncio.wait((self.under_way,))


def _error(topic: str, shard: str, error: Any) -> Exception:
    if error.code() in (
        confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE,
        confluent_kafka.KafkaError._AUTO_OFFSET_RESET,
    ):
        return InvalidInput(
            f"partition {shard} of Kafka topic {topic} does not have the group's checkpoint any "
            "more: set another"
        )
    return Unavailable(f"partition {shard} of Kafka topic {topic}: {error}")
