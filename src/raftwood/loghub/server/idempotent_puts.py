"""`IdempotentPuts`: puts of numbered batches, each for a log that the producer names.

A producer can send such a batch as often as needed, through any gateway, and it is stored once: in
the named log, or nowhere. A log that has ended refuses batches for ever, so a late copy is refused
as well.


If a producer has lost the log's name, the gateway looks for its batch in every log that the key's
batches went to, from the oldest on, and stores it only where the key's batches go now.
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
"""Limit of walks along a key's shards, while these are split and merged all the time."""


class IdempotentPuts:
    """Numbered puts. Each gateway has one."""

    def __init__(
        self, streams: Streams, catalog: Catalog, settling: LogstoreReconciler, logs: Logs
    ) -> None:
        self._streams = streams
        self._catalog = catalog
        self._settling = settling
        self._logs = logs

    async def shard(self, project: str, logstore: str, key: str) -> tuple[Logstore, Shard]:
        """Returns the shard that takes a key's batches now, by the copy of the metadata."""
        known = await self._streams.logstore(project, logstore)
        if not writable_shards(known):
            known = await self._settled(project, logstore)  # it was just being created
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
        """Stores the batch in this log of this shard; it is durable on return.

        `ShardReadonly` if the log takes no more, or is no longer the shard's: the batch is not in
        it and never will be.
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
            # The producer asks for the key's shard next, and must not be sent here again.
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
        """Returns where the batch is, if it was ever stored under this key; else stores it now.

        Batches in shards and logstores that were deleted since are gone with them.
        """
        pieces = self._streams.encoded(batch)
        known = await self._streams.logstore(project, logstore)
        lacking: set[str] = set()
        """Logs that do not have the batch and never will."""
        for _ in range(ROUNDS_MAX):
            # The oldest first: the last one stores the batch anew, so the others, which may have
            # it, come before.
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
        """Returns None if the log, ended or gone, does not have the batch and never will."""
        try:
            opened = await self._logs.open(log)
            return await opened.append(pieces, producer=producer, sequence=sequence)
        except LogSealed:
            return None
        except NotFound as error:
            known = await self._settling.settle(project, logstore)
            if known is not None and _has(known, shard, log):
                # It may have the batch: storing it elsewhere could store it twice.
                raise Unavailable(
                    f"the log of shard {shard} of logstore {logstore} cannot be found, though it "
                    "was not deleted: try again in a moment"
                ) from error
            return None

    async def _is_of(self, project: str, logstore: str, shard: int, log: str) -> bool:
        """Checks the copy of the metadata, then the metastore: the shard may be new."""
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
