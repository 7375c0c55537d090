"""A logstore in memory: what a log knows of its producers, and shards that are split."""

import asyncio
import random
from collections.abc import AsyncIterator

from raftwood.base.compression import Codec
from raftwood.base.errors import SequenceForgotten, Unavailable
from raftwood.base.position import Position
from raftwood.capture.lane import HubStream
from raftwood.loghub.batches import Batch, encode_batch
from raftwood.loghub.client.pulled_batches import PulledBatch
from raftwood.loghub.errors import ShardReadonly
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import even_ranges, middle
from raftwood.logservice.log_rules import WINDOW


class MemoryStream(HubStream):
    """Calls take a moment, within which others have their turn; some answers are lost."""

    def __init__(self, chance: random.Random, *, shards: int = 1) -> None:
        self.logstore = "memory"
        self._chance = chance
        self._shards = [
            self._shard(number, *bounds) for number, bounds in enumerate(even_ranges(shards))
        ]
        self.stored: dict[int, list[PulledBatch]] = {each.id: [] for each in self._shards}
        self._sequences: dict[tuple[int, str], dict[int, Position]] = {}
        self.is_faulty = True

    @staticmethod
    def _shard(number: int, begin: str, end: str) -> Shard:
        return Shard(
            id=number,
            log=f"log-{number}",
            status=ShardStatus.READWRITE,
            begin=begin,
            end=end,
            created_s=0,
        )

    async def _pause(self) -> None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)

    def split(self) -> None:
        parent = self._chance.choice(
            [each for each in self._shards if each.status is ShardStatus.READWRITE]
        )
        at = middle(parent.begin, parent.end)
        self._shards[parent.id] = Shard(
            id=parent.id,
            log=parent.log,
            status=ShardStatus.READONLY,
            begin=parent.begin,
            end=parent.end,
            created_s=0,
        )
        for bounds in ((parent.begin, at), (at, parent.end)):
            number = len(self._shards)
            self._shards.append(self._shard(number, *bounds))
            self.stored[number] = []

    async def shards(self) -> list[Shard]:
        found = list(self._shards)
        await self._pause()
        return found

    async def put(
        self, body: bytes, count: int, *, shard: int, producer: str, sequence: int
    ) -> Position:
        await self._pause()
        if self.is_faulty and self._chance.random() < 0.05:
            raise Unavailable("it was not even sent")
        position = self._append(body, count, shard, producer, sequence)
        await self._pause()
        if self.is_faulty and self._chance.random() < 0.05:
            raise Unavailable("its answer was lost")
        return position

    def _append(
        self, body: bytes, count: int, shard: int, producer: str, sequence: int
    ) -> Position:
        known = self._sequences.setdefault((shard, producer), {})
        if sequence in known and sequence > max(known) - WINDOW:
            return known[sequence]
        if known and sequence <= max(known) - WINDOW:
            raise SequenceForgotten(f"{sequence} is far behind {max(known)}")
        if self._shards[shard].status is ShardStatus.READONLY:
            raise ShardReadonly(f"shard {shard} was split")
        position = Position(len(self.stored[shard]))
        known[sequence] = position
        batch = Batch(body=body, codec=Codec.NONE, raw_bytes=len(body), records=count)
        data = b"".join(encode_batch(batch, received_ms=0))
        self.stored[shard].append(PulledBatch(shard, position, Position(position + 1), data))
        return position

    async def first(self, shard: int) -> Position:  # noqa: ARG002
        return Position(0)

    async def end(self, shard: int) -> Position:
        return Position(len(self.stored[shard]))

    async def batches(
        self, shard: int, *, start: Position, through: Position
    ) -> AsyncIterator[PulledBatch]:
        assert through < len(self.stored[shard])
        end = len(self.stored[shard])
        for place in range(start, end):
            await self._pause()
            yield self.stored[shard][place]

    async def batch_at(self, shard: int, position: Position) -> PulledBatch | None:
        return self.stored[shard][position]
