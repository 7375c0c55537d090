"""A reader group's checkpoints, kept by the gateways; truncation respects them."""

from collections.abc import Mapping
from contextlib import suppress

from raftwood.base.position import Position
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.errors import ConsumerGroupExists, ConsumerGroupNotFound, ShardNotFound
from raftwood.loghub.wire import (
    CreateConsumerGroup,
    GetCheckpoints,
    SetCheckpoint,
    decode_cursor,
    encode_cursor,
)

_TIMEOUT_MS = 15_000


class ReaderCheckpoints:
    """The checkpoints of one group; creates the group if need be, with an admin's key."""

    def __init__(self, gateways: Gateways, project: str, logstore: str, group: str) -> None:
        self._gateways = gateways
        self._project = project
        self._logstore = logstore
        self._group = group
        self._noted: dict[int, Position] = {}

    async def load(self) -> dict[int, Position]:
        """Returns the next position of each shard; empty for a new group."""
        try:
            return await self._load()
        except ConsumerGroupNotFound:
            control = CreateConsumerGroup(
                project=self._project, logstore=self._logstore, group=self._group
            )
            with suppress(ConsumerGroupExists):  # another reader of the group was faster
                await self._gateways.control(control, timeout_ms=_TIMEOUT_MS)
            return await self._load()

    async def _load(self) -> dict[int, Position]:
        control = GetCheckpoints(project=self._project, logstore=self._logstore, group=self._group)
        found = await self._gateways.control(control, timeout_ms=_TIMEOUT_MS)
        self._noted = {
            each.shard: decode_cursor(each.checkpoint) for each in found if each.checkpoint
        }
        return dict(self._noted)

    async def commit(self, positions: Mapping[int, Position]) -> None:
        """Commits the positions that have changed."""
        for shard, position in list(positions.items()):
            if self._noted.get(shard) == position:
                continue
            control = SetCheckpoint(
                project=self._project,
                logstore=self._logstore,
                group=self._group,
                consumer="",
                shard=shard,
                checkpoint=encode_cursor(position),
                is_forced=True,
            )
            with suppress(ShardNotFound):  # it was deleted meanwhile
                await self._gateways.control(control, timeout_ms=_TIMEOUT_MS)
            self._noted[shard] = position
