"""`IdempotentPuts`: batches that producers number, each for a log that they name.

So a producer can send a batch as often as it takes, by any gateway, and have it once: it is in the
log that was named, or nowhere. A log that has ended takes nothing more for ever, so that a copy
which comes late is refused as well.

A producer that has lost what it had named has its batch looked for: in every log that its key's
batches went to, from the oldest on, and it is stored only where the key's batches go now.
"""

from collections.abc import Sequence
from typing import Final

from raftwood.base.errors import LogSealed, NotFound, Unavailable
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import Logs
from raftwood.loghub.batches import Batch
from raftwood.loghub.errors import ShardReadonly
from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.server.catalog import Catalog, LogstoreReconciler
from raftwood.loghub.server.streams import PutResult, Streams
from raftwood.loghub.shards import lineage_of_key, shard_of_key, writable_shards

ROUNDS_MAX: Final = 10
"""Of walks along a key's shards, while these are split and merged all the time."""


class IdempotentPuts:
    """One for a gateway."""

    def __init__(
        self, streams: Streams, catalog: Catalog, settling: LogstoreReconciler, logs: Logs
    ) -> None:
        self._streams = streams
        self._catalog = catalog
        self._settling = settling
        self._logs = logs

    async def shard(self, project: str, logstore: str, key: str) -> tuple[Logstore, Shard]:
        """Where a key's batches go now, as far as is known here."""
        known = await self._streams.logstore(project, logstore)
        if not writable_shards(known):
            known = await self._settled(project, logstore)  # it was just being made
        return known, shard_of_key(known, key)

    async def put(
        self,
        project: str,
        logstore: str,
        batch: Batch,
        *,
        shard: int,
        log: str,
        producer: bytes,
        sequence: int,
    ) -> PutResult:
        """Durable when it returns, in this log of this shard.

        `ShardReadonly` where that takes no more, or is the shard's log no more: the batch is not
        there, nor ever will be.
        """
        pieces = self._streams.encoded(batch)
        if not await self._is_of(project, logstore, shard, log):
            raise ShardReadonly(
                f"logstore {logstore} was made anew, or its shard {shard} deleted, and nothing was "
                "put: ask for the shards again"
            )
        position = await self._append(
            project, logstore, shard, log, pieces, producer=producer, sequence=sequence
        )
        if position is None:
            # Whoever asks next where the key goes must not be sent here again.
            await self._settling.settle(project, logstore)
            raise ShardReadonly(
                f"shard {shard} of logstore {logstore} was split, merged or deleted, and nothing "
                "was put: ask for the shards again"
            )
        self._streams.count_put(batch)
        return PutResult(shard, position)

    async def put_resumed(
        self,
        project: str,
        logstore: str,
        batch: Batch,
        *,
        key: str,
        producer: bytes,
        sequence: int,
    ) -> PutResult:
        """Where the batch stands, if it was ever stored under this key; else it is stored now.

        Shards that were deleted since, and logstores, took what they had with them.
        """
        pieces = self._streams.encoded(batch)
        known = await self._streams.logstore(project, logstore)
        lacking: set[str] = set()
        """Logs that do not have it, nor ever will."""
        for _ in range(ROUNDS_MAX):
            # The oldest first: only the last of them can take what the others turn out to have.
            for shard in lineage_of_key(known, key):
                if shard.log in lacking:
                    continue
                position = await self._append(
                    project,
                    logstore,
                    shard.id,
                    shard.log,
                    pieces,
                    producer=producer,
                    sequence=sequence,
                )
                if position is None:
                    lacking.add(shard.log)
                    continue
                self._streams.count_put(batch)
                return PutResult(shard.id, position)
            known = await self._settled(project, logstore)
        raise Unavailable(
            f"the shards of logstore {logstore} change all the time: try again in a moment"
        )

    async def _append(
        self,
        project: str,
        logstore: str,
        shard: int,
        log: str,
        pieces: Sequence[Buffer],
        *,
        producer: bytes,
        sequence: int,
    ) -> Position | None:
        """None where the log does not have it, nor ever will: it has ended, or is gone."""
        try:
            opened = await self._logs.open(log)
            return await opened.append(pieces, producer=producer, sequence=sequence)
        except LogSealed:
            return None
        except NotFound as error:
            known = await self._settling.settle(project, logstore)
            if known is not None and _has(known, shard, log):
                # It may have the batch: to look elsewhere could store it twice.
                raise Unavailable(
                    f"the log of shard {shard} of logstore {logstore} cannot be found, though it "
                    "was not deleted: try again in a moment"
                ) from error
            return None

    async def _is_of(self, project: str, logstore: str, shard: int, log: str) -> bool:
        """By what is known, else looked up: it may be new."""
        known = await self._streams.logstore(project, logstore)
        if _has(known, shard, log):
            return True
        return _has(await self._catalog.logstore(project, logstore), shard, log)

    async def _settled(self, project: str, logstore: str) -> Logstore:
        found = await self._settling.settle(project, logstore)
        return found or await self._catalog.logstore(project, logstore)


def _has(logstore: Logstore, number: int, log: str) -> bool:
    shard = logstore.shard(number)
    return shard is not None and shard.log == log and shard.status is not ShardStatus.CREATING
