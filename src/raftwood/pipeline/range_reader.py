"""Reads one range of a shard's positions, a few pulls ahead, as record batches."""

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow

from raftwood.base.errors import Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.seams import StoredBatch
from raftwood.loghub.errors import RecordsFreed, ShardNotFound
from raftwood.pipeline.columns import Projection
from raftwood.pipeline.hub import Hub, connected
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.record_batches import Projector

PULL_BYTES_MAX: Final = 4 << 20
ROWS_MIN: Final = 4_096
"""Smaller record batches are joined, because each one costs Spark some work."""
BYTES_MIN: Final = 4 << 20
_PAUSE_S: Final = 0.05
"""The pause if planned batches are not there yet, for a moment, on another leader."""
_log = get_logger("pipeline")


def read_range(
    options: SourceOptions, projection: Projection, wanted: ShardRange, hub: Hub | None = None
) -> Iterator[Any]:
    """Yields record batches of about `ROWS_MIN` rows or more; reads what the log no longer has from
    the archive, if there is one.
    """
    projector = Projector(projection, options.mode, wanted.shard)
    gathered: list[Any] = []
    rows = size = 0
    for stored in _stored(hub or connected(options.access), options, wanted):
        batches = (
            _archived(options, projection, stored)
            if isinstance(stored, ShardRange)
            else projector.batches(stored)
        )
        for batch in batches:
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


def _archived(options: SourceOptions, projection: Projection, wanted: ShardRange) -> Iterator[Any]:
    """Reads an archived range: it was truncated after that, so the archive has it now."""
    # Imported here, because most tasks need none of it.
    from raftwood.pipeline.archive.reader import check_archived, history, open_archive  # noqa: PLC0415

    assert options.archive is not None
    archive = open_archive(options.archive, options.access)
    manifest = archive.manifest()
    if options.fails_on_data_loss:
        check_archived(manifest, wanted)
    return history(archive, manifest, projection, wanted, mode=options.mode)


def _stored(
    hub: Hub, options: SourceOptions, wanted: ShardRange
) -> Iterator[StoredBatch | ShardRange]:
    """Yields the batches of a range, and ranges to read from the archive; the next pull is under
    way while the caller processes one.
    """
    position, end = wanted.begin, wanted.end
    if position >= end:
        return
    future = hub.begin_pull(wanted.shard, position, bytes_max=PULL_BYTES_MAX)
    deadline_s: float | None = None
    while True:
        try:
            pulled = future.result()
        except ShardNotFound as error:
            yield from _lost(options, ShardRange(wanted.shard, position, end), error)
            return
        if pulled.first > position:
            freed = ShardRange(wanted.shard, position, min(pulled.first, end))
            yield from _lost(options, freed)
        if pulled.next > position or pulled.is_ended:
            deadline_s = None
        else:
            deadline_s = deadline_s or time.monotonic() + options.access.timeout_ms / 1000
            _wait_for_more(ShardRange(wanted.shard, position, end), deadline_s)
        position = max(pulled.next, position)
        is_last = position >= end or pulled.is_ended
        if not is_last:
            future = hub.begin_pull(wanted.shard, position, bytes_max=PULL_BYTES_MAX)
        for batch in pulled.batches:
            if batch.position < end:
                yield batch
        if is_last:
            return


def _wait_for_more(left: ShardRange, deadline_s: float) -> None:
    if time.monotonic() > deadline_s:
        raise Unavailable(
            f"shard {left.shard} has nothing at position {left.begin}, and was to be read up to "
            f"{left.end}: see with `raftwood cluster status` whether its log has lost replicas"
        )
    time.sleep(_PAUSE_S)


def _lost(
    options: SourceOptions, freed: ShardRange, cause: Exception | None = None
) -> Iterator[ShardRange]:
    if options.archive is not None:
        yield freed
    elif options.fails_on_data_loss:
        raise RecordsFreed(
            f"positions {freed.begin} to {freed.end} of shard {freed.shard} were freed before they "
            "were read: start from what is there, or set failOnDataLoss=false to skip them"
        ) from cause
    else:
        _log.warning(
            "positions were freed unread", shard=freed.shard, begin=freed.begin, end=freed.end
        )
