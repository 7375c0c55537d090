"""`GroupProgress`: how far groups have read: checkpoints, and which shards are over."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, NotFound, OutOfRange, Unavailable
from raftwood.base.position import Position
from raftwood.loghub.cursors import decode_cursor
from raftwood.loghub.model import Logstore, Shard
from raftwood.loghub.server.group_records import (
    CheckpointRecord,
    GroupName,
    GroupRecord,
    decode_checkpoint,
    shard_of,
)
from raftwood.loghub.server.metadata import Metadata
from raftwood.loghub.server.streams import Streams

_LOOKS_MAX: Final = 8
"""At logs, for one heartbeat."""
_LOOK_AGAIN_MS: Final = 3_000
_REMEMBERED_MAX: Final = 10_000


class GroupProgress:
    """One for a gateway."""

    def __init__(self, environment: Environment, metadata: Metadata, streams: Streams) -> None:
        self._environment = environment
        self._metadata = metadata
        self._streams = streams
        self._looked_ms: dict[tuple[GroupName, str], int] = {}
        """When a shard's log was last found to have something left for a group."""

    async def checkpoints(self, name: GroupName) -> dict[int, CheckpointRecord]:
        """By shard, where one was ever set."""
        return {
            shard_of(entry.key): decode_checkpoint(entry.value)
            async for entry in self._metadata.entries(name.checkpoints)
        }

    async def over(self, name: GroupName, record: GroupRecord, logstore: Logstore) -> list[int]:
        """The shards that are there, only can be read, and were read to their ends."""
        there = {each.id for each in logstore.shards}
        over = {shard for shard in record.over if shard in there or shard >= logstore.next_shard}
        ended = [
            each for each in logstore.visible() if each.ends_at is not None and each.id not in over
        ]
        if ended:
            checkpoints = await self.checkpoints(name)
            over.update(await self._read_to_the_end(name, ended, checkpoints))
        return sorted(over)

    async def _read_to_the_end(
        self, name: GroupName, ended: Iterable[Shard], checkpoints: dict[int, CheckpointRecord]
    ) -> list[int]:
        found: list[int] = []
        looks = _LOOKS_MAX
        for shard in ended:
            position = position_of(checkpoints.get(shard.id))
            if shard.ends_at is not None and position >= shard.ends_at:
                found.append(shard.id)
            elif looks and self._is_look_due(name, shard):
                looks -= 1
                if await self._has_nothing_left(shard, position):
                    found.append(shard.id)
        return found

    def _is_look_due(self, name: GroupName, shard: Shard) -> bool:
        now = self._environment.clock.monotonic_ns() // 1_000_000
        looked = self._looked_ms.get((name, shard.log))
        if looked is not None and now - looked < _LOOK_AGAIN_MS:
            return False
        if len(self._looked_ms) >= _REMEMBERED_MAX:
            self._looked_ms.clear()
        self._looked_ms[name, shard.log] = now
        return True

    async def _has_nothing_left(self, shard: Shard, position: Position) -> bool:
        """Clients set a checkpoint behind what they read: none where they find nothing, and one
        below the end where the log ends with positions that hold no batch.
        """
        try:
            bounds = await self._streams.bounds(shard)
            left = replace(bounds, first=max(bounds.first, position))
            return await self._streams.first_batch(shard, left) is None
        except (Unavailable, DeadlineExceeded, NotFound, OutOfRange):
            return False  # it is asked again


def position_of(checkpoint: CheckpointRecord | None) -> Position:
    """Where the group goes on; what it never read it needs from the beginning."""
    if checkpoint is None or not checkpoint.cursor:
        return Position(0)
    return decode_cursor(checkpoint.cursor)
