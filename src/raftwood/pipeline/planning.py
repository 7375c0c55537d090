"""Where a query begins and ends: asks LogHub, and leaves the deciding to the rules of `offsets`.

`QuerySpace` has the positions that a query may read, those of the logs and those of the archive
below; without an archive it is the logs' alone.
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
"""Of a batch whose records nobody counted."""


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
    """`earliest`, `latest` or positions by shard; shards that are not named begin at their first
    position, and end behind their last.
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
    """How far each shard is read, with so many rows together; `archived` says what there is of a
    range without asking the log, and where that goes on.
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
            following = asked.end  # what is not there yet is no reason to wait
        admission.found(asked.shard, steps, following)
    return admission.ends()


def _rows(stored: StoredBatch) -> int:
    try:
        head = decode_head(stored.data)
    except StoreError:
        return 1  # what cannot be read is one row at the most
    return head.records or max(1, head.raw_bytes // _ROW_BYTES_GUESSED)


class QuerySpace:
    """One for a query; look at it with `views` first."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._archive: ArchiveLog | None = None
        self._manifest = ArchiveManifest(())
        self._log_firsts: dict[int, Position] = {}

    def views(self, hub: Hub) -> list[ShardExtent]:
        """All shards as they are now, those that are in the archive alone as ended ones."""
        found, shards = self._all(hub), self._options.shards
        return [each for each in found if shards is None or each.id in shards]

    def _all(self, hub: Hub) -> list[ShardExtent]:
        options = self._options
        if options.archive is None:
            return shard_views(hub.details())
        # Loaded here, for most queries need none of it.
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
        """Where a new query begins in each shard."""
        time_s = self._options.starting_s
        if time_s is None:
            return placed("startingOffsets", views, self._options.starting)
        return {each.id: self._start(hub, each, time_s) for each in views}

    def _start(self, hub: Hub, view: ShardExtent, time_s: int) -> Position:
        """By receipt in the log, and in the archive by records' own times, a file at a time."""
        cursor = view.next
        with suppress(ShardNotFound):  # it is in the archive alone
            cursor = hub.cursor(view.id, time_s)
        if cursor > self._log_firsts.get(view.id, cursor):
            return cursor
        files = self._manifest.files(shard=view.id, from_us=time_s * 1_000_000)
        firsts = [parse_position(file.first) for _, file in files]
        return min([cursor, *firsts])

    def admitted(
        self, hub: Hub, wanted: Mapping[int, ShardRange], rows_max: int
    ) -> dict[int, Position]:
        """How far each shard is read, with so many rows together; archived files as a whole."""
        return admitted(hub, wanted, rows_max, self._archived)

    def _archived(self, asked: ShardRange) -> tuple[list[AdmissionStep], Position] | None:
        """The steps of what is in the archive; None where the log is to be asked."""
        found = self._manifest.shards.get(asked.shard)
        if found is None or found.end <= asked.begin:
            return None
        files = self._manifest.files(shard=asked.shard, begin=asked.begin, end=asked.end)
        steps = [
            AdmissionStep(max(parse_position(file.first), asked.begin), file.rows)
            for _, file in files
        ]
        return steps, found.end
