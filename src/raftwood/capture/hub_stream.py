"""The logstore that changes are captured into: batches in by name, and read back."""

from collections.abc import AsyncIterator
from typing import Final

from raftwood.base.codecs import Codec, compress
from raftwood.base.position import Position
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import PulledBatch
from raftwood.loghub.client.pulls import batches_of
from raftwood.loghub.key_ranges import contains, hash_key
from raftwood.loghub.model import Shard, ShardStatus

_WRITABLE: Final = (ShardStatus.READWRITE, ShardStatus.SEALING)
_PULL_BYTES: Final = 4 << 20


def place_of(table: str, incarnation: int, partition: int) -> str:
    """Where a partition stands among the key ranges: in one shard, whatever becomes of it."""
    return hash_key(f"{table}/{incarnation}/{partition}".encode())


def shard_at(shards: list[Shard], place: str) -> Shard | None:
    """Who takes what belongs to a place; None where nobody does for now."""
    found = [
        each
        for each in shards
        if each.status in _WRITABLE and contains(each.begin, each.end, place)
    ]
    return max(found, key=lambda each: each.id, default=None)


class HubStream:
    """One logstore."""

    def __init__(self, client: AsyncLogHubClient, *, project: str, logstore: str) -> None:
        self._client = client
        self.project = project
        self.logstore = logstore

    async def shards(self) -> list[Shard]:
        return await self._client.shards(self.project, self.logstore)

    async def put(
        self, body: bytes, count: int, *, shard: int, producer: str, sequence: int
    ) -> Position:
        batch = Batch(
            body=compress(body, Codec.LZ4),
            format=Format.LOG_GROUP,
            codec=Codec.LZ4,
            raw_bytes=len(body),
            records=count,
        )
        return await self._client.put(
            self.project, self.logstore, batch, shard=shard, producer=producer, sequence=sequence
        )

    async def first(self, shard: int) -> Position:
        return await self._client.cursor(self.project, self.logstore, shard=shard, at="begin")

    async def end(self, shard: int) -> Position:
        return await self._client.cursor(self.project, self.logstore, shard=shard, at="end")

    async def batches(
        self, shard: int, *, start: Position, through: Position
    ) -> AsyncIterator[PulledBatch]:
        """From a position on to what is the end now, and through another one at least; what was
        freed meanwhile is left out.
        """
        end = max(await self.end(shard), through + 1)
        while start < end:
            pulled = await self._client.pull(
                self.project, self.logstore, shard=shard, position=start, bytes_max=_PULL_BYTES
            )
            for batch in batches_of(shard, pulled):
                yield batch
            if pulled.is_ended or (pulled.next == start and start > through):
                return
            start = pulled.next

    async def batch_at(self, shard: int, position: Position) -> PulledBatch | None:
        """The one that stands there; None where it was freed."""
        pulled = await self._client.pull(
            self.project, self.logstore, shard=shard, position=position, batches_max=1
        )
        found = batches_of(shard, pulled)
        return found[0] if found and found[0].position == position else None
