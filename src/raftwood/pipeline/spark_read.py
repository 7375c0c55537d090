"""`raftwood.read` by Spark: native Parquet for history, and the source for the tail."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users call it)

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.file_systems import folder_uri
from raftwood.base.position import position_to_bytes
from raftwood.pipeline.archive.manifest import (
    TABLE,
    ArchivedFile,
    ArchiveLog,
    ArchiveManifest,
    Commit,
)
from raftwood.pipeline.archive.reader import ShardPart, Times, look
from raftwood.pipeline.archive.spark import source_access, spark_files
from raftwood.pipeline.columns import ALL, Column, WantedColumns
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.options import ParseMode
from raftwood.pipeline.read import ReadQuery
from raftwood.pipeline.schema import SPARK_TYPES, struct_of

_TIME = WantedColumns(Column.TIME.value, None)
Member = tuple[Commit, ArchivedFile]
"""A file, and the commit that names it."""


def spark_frame(request: ReadQuery, spark: SparkSession | None) -> DataFrame:
    """Returns the present records; later ones are not in it."""
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise InvalidConfiguration("there is no Spark session: give one as `spark`")
    options = request.options
    archive = None
    if options.archive is not None:
        files = spark_files(session, options.archive)
        archive = ArchiveLog(
            files, project=options.access.project, logstore=options.access.logstore
        )
    with Hub.connect(options.access) as hub:
        found = look(hub, archive, skips_freed=not options.fails_on_data_loss)
    wanted = request.parts(found)
    frames = _histories(session, request, found.manifest, wanted)
    tail = [each for each in wanted if each.tail < each.end]
    if tail or not frames:
        frames.append(_tail(session, request, tail))
    return reduce(DataFrame.unionByName, frames)


def _histories(
    session: SparkSession,
    request: ReadQuery,
    manifest: ArchiveManifest,
    wanted: Sequence[ShardPart],
) -> list[DataFrame]:
    """Returns one frame for each group of files."""
    if request.options.archive is None:
        return []
    uri = folder_uri(request.options.archive)
    parts = {each.shard: each for each in wanted if each.begin < each.tail}
    times = request.times
    files = [
        (commit, file)
        for commit, file in manifest.files(from_us=times.from_us, to_us=times.to_us)
        if file.shard in parts and _is_wanted(file, parts[file.shard])
    ]
    frames = []
    for members in grouped(files):
        frame = _loaded(session, uri, members)
        condition = _condition(request, members, parts)
        if condition is not None:
            frame = frame.filter(condition)
        frames.append(_chosen(frame, request, own_fields(members)))
    return frames


def grouped(files: Iterable[Member]) -> list[list[Member]]:
    """Groups files for one frame each: those with the same columns, and all of a Delta table."""
    found: dict[tuple[tuple[str, str], ...] | None, list[Member]] = {}
    for commit, file in files:
        key = None if commit.format == "delta" else tuple(sorted(commit.fields.items()))
        found.setdefault(key, []).append((commit, file))
    return list(found.values())


def own_fields(members: Sequence[Member]) -> dict[str, str]:
    """Returns contents that have columns of their own, of one type, in all files of a frame."""
    first = members[0][0].fields
    return {
        name: kind
        for name, kind in first.items()
        if all(commit.fields.get(name) == kind for commit, _ in members)
    }


def _is_wanted(file: ArchivedFile, part: ShardPart) -> bool:
    return int(file.last) >= part.begin and int(file.first) < part.tail


def _loaded(session: SparkSession, uri: str, members: Sequence[Member]) -> DataFrame:
    commit = members[0][0]
    if commit.format == "delta":
        return session.read.format("delta").load(f"{uri}/{TABLE}")
    own = (WantedColumns(name, kind) for name, kind in commit.fields.items())
    paths = [f"{uri}/{file.path}" for _, file in members]
    return session.read.schema(struct_of((*ALL, *own))).parquet(*paths)


def _condition(
    request: ReadQuery,
    members: Sequence[Member],
    parts: Mapping[int, ShardPart],
) -> SparkColumn | None:
    """Returns the filter by times, and by places if files have more than is wanted."""
    found = _timed(request.times)
    is_delta = members[0][0].format == "delta"
    if is_delta or any(
        int(file.first) < parts[file.shard].begin or int(file.last) >= parts[file.shard].tail
        for _, file in members
    ):
        shards = sorted({file.shard for _, file in members})
        places = reduce(lambda one, other: one | other, [_place(parts[each]) for each in shards])
        found = places if found is None else found & places
    return found


def _place(part: ShardPart) -> SparkColumn:
    position = F.col(Column.POSITION.value)
    return (
        (F.col(Column.SHARD.value) == part.shard)
        & (position >= F.lit(position_to_bytes(part.begin)))
        & (position < F.lit(position_to_bytes(part.tail)))
    )


def _timed(times: Times) -> SparkColumn | None:
    time, found = F.col(Column.TIME.value), []
    if times.from_us is not None:
        found.append(time >= F.timestamp_micros(F.lit(times.from_us)))
    if times.to_us is not None:
        found.append(time < F.timestamp_micros(F.lit(times.to_us)))
    return reduce(lambda one, other: one & other, found) if found else None


def _chosen(frame: DataFrame, request: ReadQuery, own: Mapping[str, str]) -> DataFrame:
    """Selects the wanted columns; the mode decides about values that cannot be cast."""
    mode = request.options.mode
    if mode is not ParseMode.PERMISSIVE:
        # A content's own column does not show whether a value is null because it could not be cast.
        own = {}
        is_read = F.col(Column.RAW.value).isNull()
        for each in request.columns:
            if each.type is not None:
                text = F.col(Column.CONTENTS.value)[each.content]
                is_cast = text.try_cast(SPARK_TYPES[each.type]).isNotNull()
                is_read = is_read & (text.isNull() | is_cast)
        if mode is ParseMode.FAILFAST:
            problem = F.lit("a batch or a value of the archive cannot be read; read in mode ")
            advice = F.concat(
                problem, F.lit(f"{ParseMode.DROPMALFORMED} or {ParseMode.PERMISSIVE}")
            )
            is_read = F.when(is_read, True).otherwise(F.raise_error(advice).cast("boolean"))
        frame = frame.filter(is_read)
    return frame.select([_content(each, own) for each in request.columns])


def _content(wanted: WantedColumns, own: Mapping[str, str]) -> SparkColumn:
    """Returns a column of the archive, or one made from the contents."""
    if wanted.type is None or own.get(wanted.name) == wanted.type:
        return F.col(f"`{wanted.name}`")
    text = F.col(Column.CONTENTS.value)[wanted.content]
    return text.try_cast(SPARK_TYPES[wanted.type]).alias(wanted.name)


def _tail(session: SparkSession, request: ReadQuery, wanted: Sequence[ShardPart]) -> DataFrame:
    options = request.options
    named = {each.name for each in request.columns}
    condition = _timed(request.times)
    needed = [] if condition is None or _TIME.name in named else [_TIME]
    if not wanted:
        return session.createDataFrame([], struct_of(request.columns))
    places = {
        "shards": ",".join(str(each.shard) for each in wanted),
        "startingOffsets": json.dumps({str(each.shard): str(each.tail) for each in wanted}),
        "endingOffsets": json.dumps({str(each.shard): str(each.end) for each in wanted}),
        "mode": options.mode.value,
        "failOnDataLoss": str(options.fails_on_data_loss).lower(),
    }
    if options.archive is not None:
        places["archive"] = folder_uri(options.archive)  # tasks have folders of their own
    frame = (
        session.read.format("loghub")
        .options(**source_access(options.access), **places)
        .schema(struct_of((*request.columns, *needed)))
        .load()
    )
    if condition is not None:
        frame = frame.filter(condition)
    return frame.select([F.col(f"`{each.name}`") for each in request.columns])
