"""Reads one range of a shard's positions, a few pulls ahead, as record batches."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow

from raftwood.base.logs import get_logger
from raftwood.base.position import Position
from raftwood.base.seams import StoredBatch
from raftwood.loghub.client.errors import RecordsFreed
from raftwood.loghub.errors import ShardNotFound
from raftwood.pipeline.columns import Projection
from raftwood.pipeline.hub import Hub, connected
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.source.projecting import Projector

PULL_BYTES_MAX: Final = 4 << 20
ROWS_MIN: Final = 8_192
"""Of a record batch: smaller ones are joined, for each costs Spark something by itself."""
BYTES_MIN: Final = 4 << 20
_log = get_logger("pipeline")


def read_range(options: SourceOptions, projection: Projection, wanted: ShardRange) -> Iterator[Any]:
    """Record batches of about `ROWS_MIN` rows or more."""
    projector = Projector(projection, options.mode, wanted.shard)
    hub = connected(options.access)
    gathered: list[Any] = []
    rows = size = 0
    for stored in _stored(hub, options, wanted):
        for batch in projector.batches(stored):
            gathered.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield _joined(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _joined(gathered)
    if projector.dropped_batches:
        _log.warning(
            "unreadable batches were left out",
            shard=wanted.shard,
            batches=projector.dropped_batches,
        )


def _joined(batches: list[Any]) -> Any:
    return batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)


def _stored(hub: Hub, options: SourceOptions, wanted: ShardRange) -> Iterator[StoredBatch]:
    """The batches of a range; the next pull is under way while one is dealt with."""
    position, end = wanted.begin, wanted.end
    if position >= end:
        return
    future = hub.begin_pull(wanted.shard, position, bytes_max=PULL_BYTES_MAX)
    while True:
        try:
            pulled = future.result()
        except ShardNotFound as error:
            _lost(options, wanted, position, end, error)
            return
        if pulled.first > position:
            _lost(options, wanted, position, min(pulled.first, end))
        position = max(pulled.next, position)
        is_last = position >= end or pulled.is_ended
        if not is_last:
            future = hub.begin_pull(wanted.shard, position, bytes_max=PULL_BYTES_MAX)
        for batch in pulled.batches:
            if batch.position < end:
                yield batch
        if is_last:
            return


def _lost(
    options: SourceOptions,
    wanted: ShardRange,
    begin: Position,
    end: Position,
    cause: Exception | None = None,
) -> None:
    if options.fails_on_data_loss:
        raise RecordsFreed(
            f"positions {begin} to {end} of shard {wanted.shard} were freed before they were read: "
            "start from what is there, or set failOnDataLoss=false to skip them"
        ) from cause
    _log.warning("positions were freed unread", shard=wanted.shard, begin=begin, end=end)
