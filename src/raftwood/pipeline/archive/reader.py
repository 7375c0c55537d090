"""Reads an archive without Spark: its part of each shard, and the records of a range.

`look` asks the logs and then their archive, in this order: what was in a log then is archived by
the second look, or was not truncated before it. In the other order, a shard might be archived,
truncated and deleted between the two. `history` yields records like a source.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import msgspec
import pyarrow
import pyarrow.compute
from pyarrow import dataset

from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound
from raftwood.base.position import Position, parse_position, position_to_bytes
from raftwood.loghub.errors import RecordsFreed
from raftwood.pipeline.archive.files import ArrowFiles
from raftwood.pipeline.archive.manifest import ArchivedFile, ArchiveLog, ArchiveManifest, Commit
from raftwood.pipeline.archive.rules import Cut, unite
from raftwood.pipeline.columns import (
    ALL,
    CONTENT_TYPES,
    Column,
    Field,
    Projection,
    WantedColumns,
    projection_for,
)
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import ParseMode, StreamAccess
from raftwood.pipeline.planning import shard_views
from raftwood.pipeline.record_batches import cast_text

_LOOKS_MAX: Final = 5


class ArchiveLook(msgspec.Struct, frozen=True):
    """What is readable at one moment."""

    manifest: ArchiveManifest
    cuts: list[Cut]
    log_firsts: dict[int, Position]
    """The first position of each shard's log."""


def look(hub: Hub, archive: ArchiveLog | None, *, skips_freed: bool = False) -> ArchiveLook:
    """Looks at the logs and the archive; looks again if the archive has a shard that is newer.

    `RecordsFreed` if records were truncated without being archived, unless they may be skipped.
    """
    manifest = ArchiveManifest(())
    for _ in range(_LOOKS_MAX):
        views = shard_views(hub.details())
        if archive is not None:
            manifest = archive.manifest()
        cuts = unite(manifest.shards, views)
        if cuts is not None:
            return ArchiveLook(manifest, cuts, {each.id: each.first for each in views})
    if not skips_freed:
        raise RecordsFreed(
            "records were freed before they were archived: archive more often, and skip them here"
        )
    firsts = {each.id: each.first for each in views}
    newest = max(firsts, default=-1)
    for shard, found in list(manifest.shards.items()):
        if shard > newest:
            del manifest.shards[shard]  # it is newer: the next look has it
        found.end = max(found.end, firsts.get(shard, found.end))
        found.is_ended = found.is_ended or shard not in firsts
    cuts = unite(manifest.shards, views)
    assert cuts is not None
    return ArchiveLook(manifest, cuts, firsts)


class ShardPart(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted part of a shard: begin ≤ position < tail from the archive, then the log."""

    shard: int
    begin: Position
    tail: Position
    end: Position


def parts(
    cuts: list[Cut],
    *,
    starts: Mapping[int, Position] | None = None,
    ends: Mapping[int, Position] | None = None,
) -> list[ShardPart]:
    """Returns the parts between positions, if these are given; `RecordsFreed` if a start is before
    all that is left.
    """
    found = []
    for cut in cuts:
        begin = (starts or {}).get(cut.shard, cut.first)
        end = min(cut.end, (ends or {}).get(cut.shard, cut.end))
        if begin < cut.first:
            raise RecordsFreed(
                f"shard {cut.shard} begins at {cut.first}: what was between {begin} and that is "
                "gone; start from there"
            )
        if begin < end:
            tail = min(max(cut.tail, begin), end)
            found.append(ShardPart(shard=cut.shard, begin=begin, tail=tail, end=end))
    return found


_TIME: Final = dataset.field(Column.TIME.value)
_POSITION: Final = dataset.field(Column.POSITION.value)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """A range of record times: from_us ≤ time < to_us, in microseconds since 1970."""

    from_us: int | None = None
    to_us: int | None = None

    def expression(self) -> Any | None:
        """Returns a filter for Arrow; None for all times."""
        bounds = []
        if self.from_us is not None:
            bounds.append(_scalar(self.from_us) <= _TIME)
        if self.to_us is not None:
            bounds.append(_scalar(self.to_us) > _TIME)
        return _all(bounds)


ALWAYS: Final = Times()


def _scalar(time_us: int) -> Any:
    return pyarrow.scalar(time_us, pyarrow.timestamp("us", "UTC"))


def _all(expressions: Iterable[Any]) -> Any | None:
    found = None
    for each in expressions:
        found = each if found is None else found & each
    return found


def open_archive(uri: str, access: StreamAccess) -> ArchiveLog:
    """Opens an archive on Arrow's file systems."""
    return ArchiveLog(ArrowFiles(uri), project=access.project, logstore=access.logstore)


def check_archived(manifest: ArchiveManifest, wanted: ShardRange) -> None:
    """`RecordsFreed` if the archive lacks a part of the range."""
    found = manifest.shards.get(wanted.shard)
    if found is None or not found.first <= wanted.begin <= wanted.end <= found.end:
        has = "nothing" if found is None else f"{found.first} to {found.end}"
        raise RecordsFreed(
            f"positions {wanted.begin} to {wanted.end} of shard {wanted.shard} were freed before "
            f"they were read, and the archive has {has} of it: start from what is there"
        )


def history(
    archive: ArchiveLog,
    manifest: ArchiveManifest,
    projection: Projection,
    wanted: ShardRange,
    *,
    times: Times = ALWAYS,
    mode: ParseMode = ParseMode.PERMISSIVE,
) -> Iterator[Any]:
    """Yields record batches, in the order of positions; opens only files that may have some."""
    if not isinstance(archive.files, ArrowFiles):
        raise InvalidConfiguration("an archive on Hadoop's file systems is read with Spark")
    found = manifest.files(
        shard=wanted.shard,
        begin=wanted.begin,
        end=wanted.end,
        from_us=times.from_us,
        to_us=times.to_us,
    )
    for _, group in groupby(found, key=lambda each: (each[0].fields, _cut(each[1], wanted))):
        members = list(group)
        yield from _scanned(archive.files, members, projection, wanted, times, mode)


def _cut(file: ArchivedFile, wanted: ShardRange) -> bool:
    """Whether only a part of a file is wanted."""
    return parse_position(file.first) < wanted.begin or parse_position(file.last) >= wanted.end


def _scanned(
    files: ArrowFiles,
    members: list[tuple[Commit, ArchivedFile]],
    projection: Projection,
    wanted: ShardRange,
    times: Times,
    mode: ParseMode,
) -> Iterator[Any]:
    """Scans files with the same columns, all of which are wanted whole, or all in part."""
    commit, first = members[0]
    own = tuple(WantedColumns(name, kind) for name, kind in commit.fields.items())
    decoding = _Decoding(projection, own, mode)
    conditions = [times.expression()]
    if mode is ParseMode.DROPMALFORMED:
        conditions.append(dataset.field(Column.RAW.value).is_null())
    if _cut(first, wanted):
        conditions += [_bytes(wanted.begin) <= _POSITION, _bytes(wanted.end) > _POSITION]
    try:
        found = dataset.dataset(
            [files.path(file.path) for _, file in members],
            schema=projection_for((*ALL, *own)).schema,
            format="parquet",
            filesystem=files.filesystem,
        )
        scanner = found.scanner(
            columns=decoding.columns,
            filter=_all(each for each in conditions if each is not None),
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield decoding.decoded(batch)
    except FileNotFoundError as error:
        raise NotFound(
            f"a file of the archive {files.uri} is gone ({error}): restore it from a copy; a Delta "
            "table that was vacuumed is read with Spark"
        ) from error


def _bytes(position: Position) -> Any:
    return pyarrow.scalar(position_to_bytes(position), pyarrow.binary())


class _Decoding:
    """Converts the columns of archived files to those that a query wants."""

    def __init__(
        self, projection: Projection, own: tuple[WantedColumns, ...], mode: ParseMode
    ) -> None:
        self._projection = projection
        self._mode = mode
        # A content's own column does not show whether a value is null because it could not be cast.
        self._own = {
            (each.content, CONTENT_TYPES[each.type]): each.name
            for each in own
            if each.type is not None and mode is ParseMode.PERMISSIVE
        }
        names = {self._name(field) for field in projection.fields}
        if mode is ParseMode.FAILFAST:
            names.add(Column.RAW.value)
        self.columns = [each.name for each in (*ALL, *own) if each.name in names]

    def _name(self, field: Field) -> str:
        """Returns the column that a field comes from."""
        if field.column is not None:
            return field.column.value
        return self._own.get((field.content, field.type), Column.CONTENTS.value)

    def decoded(self, batch: Any) -> Any:
        if self._mode is ParseMode.FAILFAST and batch.column(Column.RAW.value).null_count < len(
            batch
        ):
            raise InvalidInput(
                "a batch of the archive could not be read when it was archived; read in mode "
                "DROPMALFORMED or PERMISSIVE to go on"
            )
        masks: list[Any] = []
        arrays = [self._array(field, batch, masks) for field in self._projection.fields]
        made = pyarrow.RecordBatch.from_arrays(arrays, schema=self._projection.schema)
        for place, mask in enumerate(masks):
            masks[place] = mask if place == 0 else pyarrow.compute.and_(masks[place - 1], mask)
        return made.filter(masks[-1]) if masks else made

    def _array(self, field: Field, batch: Any, masks: list[Any]) -> Any:
        if field.column is Column.HEADERS:
            return pyarrow.nulls(batch.num_rows, field.type)
        name = self._name(field)
        values = batch.column(name)
        if field.column is None and name == Column.CONTENTS.value:
            texts = pyarrow.compute.map_lookup(values, field.content, "first")
            found, mask = cast_text(texts, field, self._mode)
            if mask is not None:
                masks.append(mask)
            return found
        return values if values.type == field.type else values.cast(field.type)
