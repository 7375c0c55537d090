"""`raftwood.read`: the records of a logstore, archived or not, as one table.

    raftwood.read("web/access", archive="s3://lake/access", columns=["time", "status int"])

History comes from the archive's files, the tail from the log. Each record comes from one of the
two, even while the logstore is archived and truncated.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.base.position import Position
from raftwood.pipeline.archive.reader import (
    ArchiveLook,
    ShardPart,
    Times,
    history,
    look,
    open_archive,
    parts,
)
from raftwood.pipeline.columns import (
    ALL,
    Column,
    Projection,
    WantedColumns,
    projection_for,
    wanted_columns,
)
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import SourceOptions, source_options
from raftwood.pipeline.range_reader import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ENGINES: Final = ("arrow", "pandas", "polars", "spark")
Bound = datetime | float | str | Mapping[int, int]
"""A time (aware, in seconds since 1970, or as ISO 8601), or positions by shard."""


class ReadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A checked query."""

    options: SourceOptions
    columns: tuple[WantedColumns, ...]
    times: Times
    starts: Mapping[int, Position] | None = None
    ends: Mapping[int, Position] | None = None

    def parts(self, found: ArchiveLook) -> list[ShardPart]:
        return parts(found.cuts, starts=self.starts, ends=self.ends)


def read(
    stream: str,
    logstore: str | None = None,
    *,
    archive: str | None = None,
    start: Bound | None = None,
    end: Bound | None = None,
    columns: Sequence[str] | None = None,
    engine: str = "arrow",
    spark: "SparkSession | None" = None,
    gateways: str | None = None,
    access_key: str | None = None,
    access_secret: str | None = None,
    skips_freed: bool = False,
    mode: str = "PERMISSIVE",
) -> Any:
    """Returns a table of Arrow, pandas or Polars, or a DataFrame of Spark.

    `start` and `end` (exclusive) are times of records, or positions by shard. `columns` are those
    of all logstores, and contents with their types, such as `status int`; the default is all that
    every record has. `stream` is PROJECT/LOGSTORE, or the project alone beside `logstore`.
    Gateways and the access key are those that commands use unless they are given.
    """
    if engine not in ENGINES:
        raise InvalidInput(f"engine is {engine!r}: give one of {', '.join(ENGINES)}")
    given = {
        "path": stream if logstore is None else f"{stream}/{logstore}",
        "archive": archive,
        "gateways": gateways,
        "accessKey": access_key,
        "accessSecret": access_secret,
        "failOnDataLoss": "false" if skips_freed else "true",
        "mode": mode,
    }
    request = ReadQuery(
        options=source_options({name: text for name, text in given.items() if text is not None}),
        columns=ALL if columns is None else wanted_columns(columns),
        times=Times(from_us=_time_us("start", start), to_us=_time_us("end", end)),
        starts=_positions(start),
        ends=_positions(end),
    )
    if engine == "spark":
        from raftwood.pipeline.spark_read import spark_frame  # noqa: PLC0415 (an extra)

        return spark_frame(request, spark)
    return _converted(_table(request), engine)


def _time_us(name: str, given: Bound | None) -> int | None:
    if given is None or isinstance(given, Mapping):
        return None
    if isinstance(given, int | float):
        return round(given * 1_000_000)
    moment = _parsed(name, given) if isinstance(given, str) else given
    # A time without a zone is UTC, like all times of a pipeline.
    aware = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _parsed(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{name} is {text[:60]!r}: give a time as 2026-01-31T12:00:00, or positions by shard"
        ) from error


def _positions(given: Bound | None) -> dict[int, Position] | None:
    if not isinstance(given, Mapping):
        return None
    return {int(shard): Position(int(position)) for shard, position in given.items()}


def _converted(table: Any, engine: str) -> Any:
    if engine == "arrow":
        return table
    try:
        library = import_module(engine)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(f"{engine} is not installed: pip install {engine}") from error
    return table.to_pandas() if engine == "pandas" else library.from_arrow(table)


def _table(request: ReadQuery) -> Any:
    with Hub.connect(request.options.access) as hub:
        projection = projection_for(request.columns)
        return pyarrow.Table.from_batches(_batches(request, projection, hub), projection.schema)


def _batches(request: ReadQuery, projection: Projection, hub: Hub) -> Iterator[Any]:
    """Reads shard by shard, each in its order; children come behind their parents."""
    options = request.options
    archive = None
    if options.archive is not None:
        archive = open_archive(options.archive, options.access)
    found = look(hub, archive, skips_freed=not options.fails_on_data_loss)
    for part in request.parts(found):
        if archive is not None and part.begin < part.tail:
            wanted = ShardRange(part.shard, part.begin, part.tail)
            yield from history(
                archive, found.manifest, projection, wanted, times=request.times, mode=options.mode
            )
        if part.tail < part.end:
            yield from _tail(request, projection, ShardRange(part.shard, part.tail, part.end), hub)


def _tail(
    request: ReadQuery, projection: Projection, wanted: ShardRange, hub: Hub
) -> Iterator[Any]:
    condition = request.times.expression()
    if condition is None:
        yield from read_range(request.options, projection, wanted, hub)
        return
    names = projection.schema.names
    timed = projection
    if Column.TIME not in projection.columns:
        timed = projection_for((*request.columns, WantedColumns(Column.TIME.value, None)))
    for batch in read_range(request.options, timed, wanted, hub):
        yield batch.filter(condition).select(names)
