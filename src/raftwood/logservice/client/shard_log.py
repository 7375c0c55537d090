"""`ShardLog`: a shard of the log service as the `Log` seam; a position is an LSN.

A batch is one record. The same (producer, sequence) again, by whichever client and after whatever
failure, answers the position that it was first written at. A shard remembers the last `WINDOW`
sequences of each producer: one that is further behind is refused with `SequenceForgotten`.

Where a shard is sealed, its end is `Bounds.next` for ever: no read goes beyond it, and one that
begins there answers nothing once its time is over.
"""

from raftwood.base.errors import LogSealed
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, StoredBatch
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import NotLeaseholder
from raftwood.logservice.records import SEALED


class ShardLog:
    """The client is shared with others; closing it is its owner's."""

    def __init__(self, client: AsyncLogClient) -> None:
        self._client = client

    async def append(self, batch: Buffer, *, producer: str, sequence: int) -> Position:
        """Durable when it returns; where its time is over, it may be tried again as it was."""
        try:
            lsn = await self._client.append_once(batch, producer=producer, sequence=sequence)
        except NotLeaseholder as error:
            if error.holder == SEALED:
                raise LogSealed("the log has ended: nothing was stored, nor will be") from error
            raise
        return Position(lsn)

    async def read(
        self, start: Position, *, bytes_max: int, wait_ms: int = 0
    ) -> tuple[list[StoredBatch], Position]:
        """Batches from `start` on, one at least if there is any, and where to read next."""
        records, next_lsn = await self._client.read_views(
            start, bytes_max=bytes_max, wait_ms=wait_ms
        )
        return [StoredBatch(Position(lsn), data) for lsn, data in records], Position(next_lsn)

    async def truncate(self, before: Position) -> None:
        """Allow everything below `before` to be freed."""
        await self._client.truncate(max(0, before - 1))

    async def bounds(self) -> Bounds:
        log = (await self._client.info()).log
        return Bounds(
            Position(log.first_lsn),
            Position(log.next_lsn),
            is_sealed=log.sealed_lsn > 0,
            appended_bytes=log.appended_bytes,
        )

    async def seal(self) -> Position:
        """End the log for ever; where it ended."""
        return Position(await self._client.seal())
