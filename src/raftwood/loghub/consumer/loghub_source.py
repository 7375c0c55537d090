"""A LogHub logstore as a source: batches are passed on in their stored form."""

from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.position import Position, parse_position
from raftwood.loghub.batches import decode_head
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import PulledBatch, batches_of
from raftwood.loghub.consumer.source import ShardRead, SourceShard
from raftwood.loghub.errors import RecordsFreed, ShardNotFound
from raftwood.loghub.wire import Pulled

_LOOK_BYTES: Final = 64 << 10


class LogHubBatch(PulledBatch, frozen=True):
    """A batch in its stored form; `records()` or `to_arrow()` decode it."""

    @property
    def shard_id(self) -> str:
        return str(self.shard)

    @property
    def next_position(self) -> str:
        return str(self.next)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def received_ms(self) -> int:
        return self.head.received_ms


class LogHubSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one read of a shard; a consumer holds two reads of each shard."""

    read_bytes_max: int = 1 << 20
    read_batches_max: int = 1_000
    wait_ms: int = 10_000
    """How long a read at the end of a shard waits for more, or for the shard's end."""
    skips_freed: bool = False
    """If batches, or a whole shard, were freed before they were read, go on; else raise
    `RecordsFreed` or `ShardNotFound`.
    """


class LogHubSource:
    """Reads one logstore; the caller closes the client."""

    def __init__(
        self,
        client: AsyncLogHubClient,
        *,
        project: str,
        logstore: str,
        settings: LogHubSourceSettings | None = None,
    ) -> None:
        self._client = client
        self._project = project
        self._logstore = logstore
        self._settings = settings or LogHubSourceSettings()
        self.freed = 0
        """How often batches were freed before they were read."""

    async def list_shards(self) -> Sequence[SourceShard]:
        shards = await self._client.shards(self._project, self._logstore)
        return [SourceShard(str(each.id), tuple(map(str, each.parents))) for each in shards]

    async def begin(self, shard: str) -> str:
        return await self._cursor(shard, "begin")

    async def end(self, shard: str) -> str:
        return await self._cursor(shard, "end")

    async def _cursor(self, shard: str, at: str) -> str:
        try:
            found = await self._client.cursor(
                self._project, self._logstore, shard=int(shard), at=at
            )
        except ShardNotFound:
            if not self._settings.skips_freed:
                raise
            return "0"  # a read there reports it, too
        return str(found)

    async def next_received_ms(self, shard: str, position: str) -> int | None:
        at = parse_position(position)
        while True:
            pulled = await self._client.pull(
                self._project,
                self._logstore,
                shard=int(shard),
                position=at,
                batches_max=1,
                bytes_max=_LOOK_BYTES,
            )
            if pulled.batches:
                return decode_head(pulled.batches[0].data).received_ms
            if pulled.next <= at:
                return None
            # There is no batch at this position: skip the log's own entries.
            at = pulled.next

    async def read(self, shard: str, position: str) -> ShardRead:
        begin = parse_position(position)
        try:
            pulled = await self._pull(shard, begin)
        except ShardNotFound:
            if not self._settings.skips_freed:
                raise
            self.freed += 1
            return ShardRead([], position, is_ended=True)
        if pulled.first > begin:
            self._note_freed(shard, begin, pulled.first)
        batches = [_batch(each) for each in batches_of(int(shard), pulled)]
        return ShardRead(batches, str(pulled.next), pulled.is_ended)

    def leave(self, shard: str) -> None:
        """Does nothing: no resources are held between reads."""

    async def _pull(self, shard: str, position: Position) -> Pulled:
        settings = self._settings
        return await self._client.pull(
            self._project,
            self._logstore,
            shard=int(shard),
            position=position,
            batches_max=settings.read_batches_max,
            bytes_max=settings.read_bytes_max,
            wait_ms=settings.wait_ms,
        )

    def _note_freed(self, shard: str, position: Position, first: Position) -> None:
        if not self._settings.skips_freed:
            raise RecordsFreed(
                f"shard {shard} was truncated: it begins at {first}, and {position} was to be read "
                "next: set the group's checkpoint with `raftwood group reset`, or let it skip what "
                "is freed"
            )
        self.freed += 1


def _batch(pulled: PulledBatch) -> LogHubBatch:
    return LogHubBatch(pulled.shard, pulled.position, pulled.next, pulled.data)
