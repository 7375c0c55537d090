"""An archive by Spark: with its writers of Parquet and Delta, and its JVM's file systems."""

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from raftwood.base.errors import InvalidConfiguration, StoreDamaged
from raftwood.base.file_systems import folder_uri
from raftwood.base.position import position_from_bytes
from raftwood.pipeline.archive.files import ArchiveFiles, ArrowFiles, not_found, sync_locally
from raftwood.pipeline.archive.manifest import TABLE, ArchivedFile, ArchivedRange
from raftwood.pipeline.archive.writer import ArchiveWriter, WrittenFiles, new_folder
from raftwood.pipeline.columns import ALL, WantedColumns
from raftwood.pipeline.options import StreamAccess
from raftwood.pipeline.schema import struct_of
from raftwood.pipeline.spark import spark_errors_told

_EXISTS: Final = "org.apache.hadoop.fs.FileAlreadyExistsException"
_NOT_FOUND: Final = "java.io.FileNotFoundException"
_NO_CONTEXT: Final = "org.apache.hadoop.fs.UnsupportedFileSystemException"


def spark_files(spark: SparkSession, uri: str) -> ArchiveFiles:
    """Uses Hadoop's file systems, or Arrow's with Spark Connect, which has no JVM to ask."""
    return ArrowFiles(uri) if getattr(spark, "_jvm", None) is None else HadoopFiles(spark, uri)


class HadoopFiles:
    """Files by the Hadoop file systems of a session with a JVM of its own."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = folder_uri(uri)
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()
        self._files = self._path("").getFileSystem(self._configuration)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{path}" if path else self.uri)

    def names(self, folder: str) -> list[str]:
        try:
            found = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if _class_of(error) == _NOT_FOUND:
                return []
            raise
        return sorted(each.getPath().getName() for each in found)

    def read(self, path: str) -> bytes:
        try:
            stream = self._files.open(self._path(path))
        except Py4JJavaError as error:
            if _class_of(error) == _NOT_FOUND:
                raise not_found(self.uri, path) from error
            raise
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        try:
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._path("").toUri(), self._configuration
            )
        except Py4JJavaError as error:
            if _class_of(error) != _NO_CONTEXT:
                raise
            # Object stores show a file only when it is closed.
            return self._write(path, data)
        temporary = f"{path}.{uuid.uuid4().hex}.new"
        self._write(temporary, data)
        try:
            none = self._jvm.org.apache.hadoop.fs.Options.Rename
            overwriting = self._jvm.java.lang.reflect.Array.newInstance(none._java_lang_class, 0)
            context.rename(self._path(temporary), self._path(path), overwriting)
        except Py4JJavaError as error:
            self._files.delete(self._path(temporary), False)
            if _class_of(error) == _EXISTS:
                return False
            raise
        self.sync((path,))
        return True

    def _write(self, path: str, data: bytes) -> bool:
        try:
            stream = self._files.create(self._path(path), False)
        except Py4JJavaError as error:
            if _class_of(error) == _EXISTS:
                return False
            raise
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        return True

    def remove(self, folder: str) -> None:
        self._files.delete(self._path(folder), True)

    def sync(self, paths: Iterable[str]) -> None:
        """Syncs local files; HDFS and object stores keep what was closed."""
        if self._files.getUri().getScheme() == "file":
            root = unquote(self.uri.removeprefix("file:").removeprefix("//"))
            sync_locally(f"{root}/{path}" for path in paths)


def _class_of(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


FORMATS: Final = ("parquet", "delta")
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_ROWS_MAX: Final = 1 << 23
_LOG: Final = f"{TABLE}/_delta_log"
_LOGS_MAX: Final = 50
"""Limit of commits of a table to search; other programs than the archiver may write there."""


def spark_writer(
    spark: SparkSession,
    files: ArchiveFiles,
    access: StreamAccess,
    *,
    format: str,  # noqa: A002 (as Spark calls it)
    fields: Sequence[WantedColumns],
    partitions_min: int,
) -> ArchiveWriter:
    """Returns a writer of Parquet, or of a Delta table, which needs Delta's jars in the session."""
    if format not in FORMATS:
        raise InvalidConfiguration(f"format is {format!r}: give one of {', '.join(FORMATS)}")
    rows = SourceRows(spark, access, fields, partitions_min)
    if format == "delta":
        return DeltaWriter(spark, files, rows)
    return ParquetWriter(spark, files, rows)


def source_access(access: StreamAccess) -> dict[str, str]:
    """Returns the source's options for a logstore."""
    return {
        "gateways": ",".join(access.gateways),
        "accessKey": access.access_key,
        "accessSecret": access.access_secret,
        "project": access.project,
        "logstore": access.logstore,
        "timeoutMs": str(access.timeout_ms),
    }


class SourceRows:
    """Reads the rows of ranges by the source."""

    def __init__(
        self,
        spark: SparkSession,
        access: StreamAccess,
        fields: Sequence[WantedColumns],
        partitions_min: int,
    ) -> None:
        self.fields = {each.name: each.type for each in fields if each.type is not None}
        self.schema = struct_of((*ALL, *fields))
        self._spark = spark
        self._access = access
        self._partitions_min = partitions_min

    def frame(self, ranges: Sequence[ArchivedRange]) -> DataFrame | None:
        """Returns None if all ranges are empty; the shard of an empty one may be gone."""
        ranges = [each for each in ranges if each.begins_at < each.ends_at]
        if not ranges:
            return None
        starts = {str(each.shard): each.first for each in ranges}
        ends = {str(each.shard): each.end for each in ranges}
        return (
            self._spark.read.format("loghub")
            .options(**source_access(self._access))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("shards", ",".join(starts))
            .option("minPartitions", str(self._partitions_min))
            .schema(self.schema)
            .load()
        )


class ParquetWriter:
    """Writes Parquet, in a folder of its own for each attempt at a commit."""

    format = "parquet"

    def __init__(self, spark: SparkSession, files: ArchiveFiles, rows: SourceRows) -> None:
        self._spark = spark
        self._files = files
        self._rows = rows

    def pending(self, number: int) -> WrittenFiles | None:  # noqa: ARG002 (files count when committed)
        return None

    def write(self, ranges: Sequence[ArchivedRange], *, number: int) -> WrittenFiles:
        frame = self._rows.frame(ranges)
        if frame is None:
            return WrittenFiles(tuple(ranges), (), self._rows.fields)
        folder = new_folder(number)
        _write(frame, "parquet", f"{self._files.uri}/{folder}")
        names = [name for name in self._files.names(folder) if name.endswith(".parquet")]
        files = described(
            self._spark, self._files, self._rows, [f"{folder}/{name}" for name in names]
        )
        self._files.sync(file.path for file in files)
        return WrittenFiles(tuple(ranges), files, self._rows.fields)


class _Noted(msgspec.Struct):
    """Our metadata in a Delta transaction."""

    ranges: tuple[ArchivedRange, ...]
    fields: dict[str, str]


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _CommitInfo(msgspec.Struct, rename="camel"):
    user_metadata: str | None = None


class _Added(msgspec.Struct, rename="camel"):
    path: str


class _Action(msgspec.Struct, rename="camel"):
    """A line of a Delta table's log."""

    txn: _Transaction | None = None
    commit_info: _CommitInfo | None = None
    add: _Added | None = None


class DeltaWriter:
    """Writes one table for all commits. A commit's number is its transaction's version, so it is
    written once. Its ranges stand in the table's log, so an unfinished commit is found there.
    """

    format = "delta"

    def __init__(self, spark: SparkSession, files: ArchiveFiles, rows: SourceRows) -> None:
        self._spark = spark
        self._files = files
        self._rows = rows
        self._application = "raftwood-archive"

    def pending(self, number: int) -> WrittenFiles | None:
        names = [name for name in self._files.names(_LOG) if name.endswith(".json")]
        for name in sorted(names, reverse=True)[:_LOGS_MAX]:
            actions = _actions(self._files.read(f"{_LOG}/{name}"), name)
            versions = [
                each.txn.version
                for each in actions
                if each.txn is not None and each.txn.app_id == self._application
            ]
            if number in versions:
                return self._written(actions, name)
            if versions:
                return None  # it belongs to an earlier commit
        return None

    def _written(self, actions: Sequence[_Action], name: str) -> WrittenFiles:
        noted = [each.commit_info.user_metadata for each in actions if each.commit_info is not None]
        try:
            found = msgspec.json.decode(noted[0] or "", type=_Noted)
        except (IndexError, msgspec.MsgspecError) as error:
            raise StoreDamaged(
                f"{name} of the Delta table does not say what was archived: begin a new archive"
            ) from error
        added = [f"{TABLE}/{each.add.path}" for each in actions if each.add is not None]
        files = described(self._spark, self._files, self._rows, added)
        self._files.sync([f"{_LOG}/{name}", *(file.path for file in files)])
        return WrittenFiles(found.ranges, files, found.fields)

    def write(self, ranges: Sequence[ArchivedRange], *, number: int) -> WrittenFiles:
        frame = self._rows.frame(ranges)
        if frame is None:
            return WrittenFiles(tuple(ranges), (), self._rows.fields)
        noted = _Noted(tuple(ranges), self._rows.fields)
        _write(
            frame,
            "delta",
            f"{self._files.uri}/{TABLE}",
            txnAppId=self._application,
            txnVersion=str(number),
            userMetadata=msgspec.json.encode(noted).decode(),
            mergeSchema="true",
        )
        # If another archiver was faster, the table has its ranges and not these.
        found = self.pending(number)
        if found is None:
            raise StoreDamaged(
                f"the table of {self._files.uri} has no transaction {number}, which was just "
                "written: others changed its log"
            )
        return found


def _actions(data: bytes, name: str) -> list[_Action]:
    try:
        return [msgspec.json.decode(line, type=_Action) for line in data.splitlines() if line]
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"{name} of the Delta table cannot be read: {error}") from error


def _write(frame: DataFrame, kind: str, uri: str, **options: str) -> None:
    """Writes zstd, and times in the form that others read best; leaves the session unchanged."""
    configuration = frame.sparkSession.conf
    before = configuration.get(_TIMESTAMPS)
    configuration.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    writer = (
        frame.write.format(kind)
        .mode("append")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", str(_ROWS_MAX))
        .options(**options)
    )
    try:
        with spark_errors_told(f"writing to the archive {uri}"):
            writer.save(uri)
    finally:
        configuration.set(_TIMESTAMPS, str(before))


def described(
    spark: SparkSession, files: ArchiveFiles, rows: SourceRows, paths: Sequence[str]
) -> tuple[ArchivedFile, ...]:
    """Reads files to describe them for the manifest; leaves out empty ones."""
    if not paths:
        return ()
    by_name = {path.rpartition("/")[2]: path for path in paths}
    micros = F.unix_micros("time")
    facts = (
        spark.read.schema(rows.schema)
        .parquet(*[f"{files.uri}/{path}" for path in paths])
        .groupBy(F.col("_metadata.file_name").alias("name"))
        .agg(
            F.count("*").alias("rows"),
            F.min("shard").alias("shard"),
            F.max("shard").alias("other"),
            F.min("position").alias("first"),
            F.max("position").alias("last"),
            F.min(micros).alias("time_min_us"),
            F.max(micros).alias("time_max_us"),
        )
    )
    with spark_errors_told(f"looking at what was written to the archive {files.uri}"):
        made = [_file(each, by_name) for each in facts.collect()]
    return tuple(sorted(made, key=lambda each: (each.shard, int(each.first))))


def _file(row: Any, by_name: dict[str, str]) -> ArchivedFile:
    assert row["shard"] == row["other"], "a task reads one shard"
    return ArchivedFile(
        path=by_name[row["name"]],
        shard=row["shard"],
        first=str(position_from_bytes(bytes(row["first"]))),
        last=str(position_from_bytes(bytes(row["last"]))),
        rows=row["rows"],
        time_min_us=row["time_min_us"],
        time_max_us=row["time_max_us"],
    )
