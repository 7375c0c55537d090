"""`Space`: the positions that a query may read, those of the logs and those of the archive below.

Without an archive it is the logs' alone.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from raftwood.base.position import Position, parse_position
from raftwood.loghub.errors import ShardNotFound
from raftwood.pipeline.admission import Step
from raftwood.pipeline.archive.manifest import Manifest
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange, ShardView
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.source.planning import admitted, placed, shard_views

if TYPE_CHECKING:
    from raftwood.pipeline.archive.archive import Archive


class Space:
    """One for a query; look at it with `views` first."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._archive: Archive | None = None
        self._manifest = Manifest(())
        self._log_firsts: dict[int, Position] = {}

    def views(self, hub: Hub) -> list[ShardView]:
        """All shards as they are now, those that are in the archive alone as ended ones."""
        found, shards = self._all(hub), self._options.shards
        return [each for each in found if shards is None or each.id in shards]

    def _all(self, hub: Hub) -> list[ShardView]:
        options = self._options
        if options.archive is None:
            return shard_views(hub.details())
        # Loaded here, for most queries need none of it.
        from raftwood.pipeline.archive.history import open_archive  # noqa: PLC0415
        from raftwood.pipeline.archive.looking import look  # noqa: PLC0415

        if self._archive is None:
            self._archive = open_archive(options.archive, options.access)
        found = look(hub, self._archive, skips_freed=not options.fails_on_data_loss)
        self._manifest, self._log_firsts = found.manifest, found.log_firsts
        return [cut.view() for cut in found.cuts]

    def starts(self, hub: Hub, views: Iterable[ShardView]) -> dict[int, Position]:
        """Where a new query begins in each shard."""
        time_s = self._options.starting_s
        if time_s is None:
            return placed("startingOffsets", views, self._options.starting)
        return {each.id: self._start(hub, each, time_s) for each in views}

    def _start(self, hub: Hub, view: ShardView, time_s: int) -> Position:
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

    def _archived(self, asked: ShardRange) -> tuple[list[Step], Position] | None:
        """The steps of what is in the archive; None where the log is to be asked."""
        found = self._manifest.shards.get(asked.shard)
        if found is None or found.end <= asked.begin:
            return None
        files = self._manifest.files(shard=asked.shard, begin=asked.begin, end=asked.end)
        steps = [Step(max(parse_position(file.first), asked.begin), file.rows) for _, file in files]
        return steps, found.end
