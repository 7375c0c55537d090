"""Plans where a query begins and ends: asks LogHub, and decides by the rules of `offsets`.

`QuerySpace` has the positions that a query may read: those of the logs, and below them those of the
archive, if there is one.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from raftwood.base.errors import InvalidConfiguration, StoreError
from raftwood.base.position import Position, parse_position
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import decode_head
from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.wire import ShardDetail
from raftwood.pipeline.archive.manifest import ArchiveManifest
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import AdmissionStep, RowAdmission, ShardExtent, ShardRange
from raftwood.pipeline.options import EARLIEST, Place, SourceOptions

if TYPE_CHECKING:
    from raftwood.pipeline.archive.manifest import ArchiveLog

_ROW_BYTES_GUESSED: Final = 256
"""Assumed for a batch whose records were not counted."""


def shard_views(details: Iterable[ShardDetail]) -> list[ShardExtent]:
    return [
        ShardExtent(
            id=each.shard.id,
            parents=each.shard.parents,
            first=Position(int(each.first)),
            next=Position(int(each.next)),
            is_ended=each.shard.ends_at is not None,
            parent_ends=tuple(Position(int(end)) for end in each.shard.parent_ends),
        )
        for each in details
    ]


def placed(
    name: str, views: Iterable[ShardExtent], given: str | Mapping[int, Place]
) -> dict[int, Position]:
    """Resolves `earliest`, `latest` or positions by shard. Shards that are not named begin at their
    first position, and end behind their last.
    """
    known = {each.id: each for each in views}
    if isinstance(given, str):
        return {each.id: each.first if given == EARLIEST else each.next for each in known.values()}
    found = {}
    for shard, place in given.items():
        view = known.get(shard)
        if view is None:
            raise InvalidConfiguration(f"{name} names shard {shard}, which is not there")
        if not isinstance(place, str):
            found[shard] = place
        else:
            found[shard] = view.first if place == EARLIEST else view.next
        if found[shard] > view.next:
            raise InvalidConfiguration(
                f"{name} says {place} for shard {shard}, which ends at {view.next}"
            )
    return found


def admitted(
    hub: Hub,
    wanted: Mapping[int, ShardRange],
    rows_max: int,
    archived: Callable[[ShardRange], tuple[list[AdmissionStep], Position] | None],
) -> dict[int, Position]:
    """Returns how far each shard is read for at most `rows_max` rows in all. `archived` returns the
    steps of an archived range without asking the log, and the position behind them.
    """
    admission = RowAdmission(wanted, rows_max)
    while (asked := admission.wanted()) is not None:
        history = archived(asked)
        if history is not None:
            admission.found(asked.shard, *history)
            continue
        pulled = hub.heads(asked.shard, asked.begin)
        steps = [AdmissionStep(each.position, _rows(each)) for each in pulled.batches]
        following = asked.end if pulled.is_ended else max(pulled.next, pulled.first)
        if following <= asked.begin:
            following = asked.end  # do not wait for what is not there yet
        admission.found(asked.shard, steps, following)
    return admission.ends()


def _rows(stored: StoredBatch) -> int:
    try:
        head = decode_head(stored.data)
    except StoreError:
        return 1  # a batch that cannot be decoded is at most one row
    return head.records or max(1, head.raw_bytes // _ROW_BYTES_GUESSED)


class QuerySpace:
    """The positions that one query may read; call `views` first."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._archive: ArchiveLog | None = None
        self._manifest = ArchiveManifest(())
        self._log_firsts: dict[int, Position] = {}

    def views(self, hub: Hub) -> list[ShardExtent]:
        """Returns all shards as they are now; shards that only the archive has count as ended."""
        found, shards = self._all(hub), self._options.shards
        return [each for each in found if shards is None or each.id in shards]

    def _all(self, hub: Hub) -> list[ShardExtent]:
        options = self._options
        if options.archive is None:
            return shard_views(hub.details())
        # Imported here, because most queries need none of it.
        from raftwood.pipeline.archive.reader import (  # noqa: PLC0415
            look,
            open_archive,
        )

        if self._archive is None:
            self._archive = open_archive(options.archive, options.access)
        found = look(hub, self._archive, skips_freed=not options.fails_on_data_loss)
        self._manifest, self._log_firsts = found.manifest, found.log_firsts
        return [cut.view() for cut in found.cuts]

    def starts(self, hub: Hub, views: Iterable[ShardExtent]) -> dict[int, Position]:
        """Returns where a new query begins in each shard."""
        time_s = self._options.starting_s
        if time_s is None:
            return placed("startingOffsets", views, self._options.starting)
        return {each.id: self._start(hub, each, time_s) for each in views}

    def _start(self, hub: Hub, view: ShardExtent, time_s: int) -> Position:
        """Finds a time: by receipt in the log, in the archive by records' own times, per file."""
        cursor = view.next
        with suppress(ShardNotFound):  # only the archive has it
            cursor = hub.cursor(view.id, time_s)
        if cursor > self._log_firsts.get(view.id, cursor):
            return cursor
        files = self._manifest.files(shard=view.id, from_us=time_s * 1_000_000)
        firsts = [parse_position(file.first) for _, file in files]
        return min([cursor, *firsts])

    def admitted(
        self, hub: Hub, wanted: Mapping[int, ShardRange], rows_max: int
    ) -> dict[int, Position]:
        """Returns how far each shard is read for so many rows; archived files count whole."""
        return admitted(hub, wanted, rows_max, self._archived)

    def _archived(self, asked: ShardRange) -> tuple[list[AdmissionStep], Position] | None:
        """Returns the steps of an archived range; None if the log has it."""
        found = self._manifest.shards.get(asked.shard)
        if found is None or found.end <= asked.begin:
            return None
        files = self._manifest.files(shard=asked.shard, begin=asked.begin, end=asked.end)
        steps = [
            AdmissionStep(max(parse_position(file.first), asked.begin), file.rows)
            for _, file in files
        ]
        return steps, found.end
