"""Writers of ranges into an archive's files: by Arrow here, by Spark in `archive/spark`."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
import pyarrow
import pyarrow.compute
from pyarrow import parquet

from raftwood.base.position import Position, position_from_bytes
from raftwood.pipeline.archive.files import ArrowFiles
from raftwood.pipeline.archive.manifest import DATA, ArchivedFile, ArchivedRange
from raftwood.pipeline.columns import ALL, Column, WantedColumns, projection_for
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.range_reader import read_range

GROUP_ROWS: Final = 1 << 17
"""Rows of a row group, which is read or skipped as a whole."""
FILE_ROWS_MAX: Final = 1 << 23


class WrittenFiles(msgspec.Struct, frozen=True):
    """What is to be committed."""

    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...]
    fields: dict[str, str]
    """Contents that have columns of their own in these files, with their types."""


class ArchiveWriter(Protocol):
    """Writes the files that a commit will name."""

    format: str

    def pending(self, number: int) -> WrittenFiles | None:
        """Returns files of an earlier run for this commit that count already."""

    def write(self, ranges: Sequence[ArchivedRange], *, number: int) -> WrittenFiles:
        """Writes files, which are durable on return."""


def new_folder(number: int) -> str:
    """Returns the name of a folder for one attempt at a commit; each attempt gets another one."""
    return f"{DATA}/{number:012d}-{uuid.uuid4().hex[:12]}"


class ArrowWriter:
    """Writes Parquet by Arrow, one shard after the other; for archives that need no Spark."""

    format = "parquet"

    def __init__(
        self, files: ArrowFiles, options: SourceOptions, *, fields: Sequence[WantedColumns] = ()
    ) -> None:
        self._fields = {each.name: each.type for each in fields if each.type is not None}
        self._files = files
        self._options = options
        self._projection = projection_for((*ALL, *fields))

    def pending(self, number: int) -> WrittenFiles | None:  # noqa: ARG002 (files count when committed)
        return None

    def write(self, ranges: Sequence[ArchivedRange], *, number: int) -> WrittenFiles:
        folder = new_folder(number)
        made: list[ArchivedFile] = []
        with Hub.connect(self._options.access) as hub:
            for each in ranges:
                wanted = ShardRange(each.shard, each.begins_at, each.ends_at)
                batches = read_range(self._options, self._projection, wanted, hub)
                made.extend(self._write_range(folder, each.shard, batches))
        self._files.sync(file.path for file in made)
        return WrittenFiles(tuple(ranges), tuple(made), self._fields)

    def _write_range(
        self, folder: str, shard: int, batches: Iterator[Any]
    ) -> Iterator[ArchivedFile]:
        number, following = 0, next(batches, None)
        while following is not None:
            path = f"{folder}/shard-{shard}-{number:04d}.parquet"
            facts = FileFacts(path, shard)
            with (
                self._files.open(path) as stream,
                parquet.ParquetWriter(
                    stream, self._projection.schema, compression="zstd"
                ) as writer,
            ):
                gathered: list[Any] = []
                while following is not None and facts.rows < FILE_ROWS_MAX:
                    gathered.append(following)
                    facts.add(following)
                    if sum(each.num_rows for each in gathered) >= GROUP_ROWS:
                        writer.write_table(pyarrow.Table.from_batches(gathered))
                        gathered = []
                    following = next(batches, None)
                if gathered:
                    writer.write_table(pyarrow.Table.from_batches(gathered))
            yield facts.file()
            number += 1


class FileFacts:
    """A file's entry in the manifest, gathered while the file is written."""

    def __init__(self, path: str, shard: int) -> None:
        self._path = path
        self._shard = shard
        self.rows = 0
        self._first: Position | None = None
        self._last: Position | None = None
        self._times: list[int] = []

    def add(self, batch: Any) -> None:
        positions = batch.column(Column.POSITION.value)
        if self._first is None:
            self._first = position_from_bytes(positions[0].as_py())
        self._last = position_from_bytes(positions[-1].as_py())
        self.rows += batch.num_rows
        times = batch.column(Column.TIME.value).cast(pyarrow.int64())
        found = pyarrow.compute.min_max(times).as_py()
        if found["min"] is not None:
            low, high = min([found["min"], *self._times]), max([found["max"], *self._times])
            self._times = [low, high]

    def file(self) -> ArchivedFile:
        return ArchivedFile(
            path=self._path,
            shard=self._shard,
            first=str(self._first),
            last=str(self._last),
            rows=self.rows,
            time_min_us=self._times[0] if self._times else None,
            time_max_us=self._times[1] if self._times else None,
        )
