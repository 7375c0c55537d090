"""`Archiver`: moves a logstore's batches to its archive, after which the log may be truncated.

    archiver = Archiver.with_spark(spark, access, "s3a://lake/access", is_truncating=True)
    report = archiver.run()

The order is: files, commit, checkpoints, truncation. If a run is killed at any point, the next one
continues: files without a commit do not count, and checkpoints are set again from the manifest.
"""

import posixpath
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import msgspec

from raftwood.base.environment import Clock, SystemClock
from raftwood.base.errors import Conflict, RaftwoodError
from raftwood.base.file_systems import folder_uri
from raftwood.base.logs import get_logger
from raftwood.base.position import Position
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.errors import ConsumerGroupExists, ShardNotFound
from raftwood.loghub.wire import ShardDetail, decode_cursor
from raftwood.pipeline.archive.files import ArrowFiles
from raftwood.pipeline.archive.manifest import ArchivedRange, ArchiveLog, ArchiveManifest, Commit
from raftwood.pipeline.archive.rules import plan, truncatable
from raftwood.pipeline.archive.writer import ArchiveWriter, ArrowWriter, WrittenFiles
from raftwood.pipeline.columns import wanted_columns
from raftwood.pipeline.options import SourceOptions, StreamAccess
from raftwood.pipeline.planning import shard_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP_PREFIX: Final = "archive-"
_ATTEMPTS_MAX: Final = 5
_log = get_logger("pipeline")


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    rows: int
    """Rows that it archived."""
    files: int
    archived: dict[int, Position]
    """The position behind the last archived one of each shard."""
    truncated: dict[int, Position]
    """The first position that is left in each truncated shard."""
    gaps: int
    """Ranges that were freed before they were archived, in the whole archive."""


def group_of(uri: str) -> str:
    """Returns the consumer group of an archive, which protects the log from truncation."""
    uri = re.sub(r"^s3[an]:", "s3:", folder_uri(uri))
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", posixpath.basename(uri))[:64]
    return f"{GROUP_PREFIX}{name}-{zlib.crc32(uri.encode()):08x}"


class Archiver:
    """Archives one logstore. The key must be an admin's, for the group and for truncation.

    Several may run at the same time: a range is committed once.
    """

    def __init__(
        self,
        access: StreamAccess,
        archive: ArchiveLog,
        writer: ArchiveWriter,
        *,
        group: str | None = None,
        is_truncating: bool = False,
        skips_freed: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._access = access
        self._archive = archive
        self._writer = writer
        self._group = group or group_of(archive.files.uri)
        self._is_truncating = is_truncating
        self._skips_freed = skips_freed
        self._clock = clock or SystemClock()

    @classmethod
    def with_arrow(
        cls,
        access: StreamAccess,
        uri: str,
        *,
        fields: Sequence[str] = (),
        group: str | None = None,
        is_truncating: bool = False,
        skips_freed: bool = False,
    ) -> Self:
        """Returns an archiver that works in this process, without Spark; `fields` are contents that
        get columns of their own, such as `status int`.
        """
        files = ArrowFiles(uri)
        writer = ArrowWriter(files, SourceOptions(access=access), fields=wanted_columns(fields))
        return cls(
            access,
            ArchiveLog(files, project=access.project, logstore=access.logstore),
            writer,
            group=group,
            is_truncating=is_truncating,
            skips_freed=skips_freed,
        )

    @classmethod
    def with_spark(
        cls,
        spark: "SparkSession",
        access: StreamAccess,
        uri: str,
        *,
        format: str = "parquet",  # noqa: A002 (as Spark calls it)
        fields: Sequence[str] = (),
        partitions_min: int = 1,
        group: str | None = None,
        is_truncating: bool = False,
        skips_freed: bool = False,
    ) -> Self:
        """Returns an archiver that uses Spark; `format` is `parquet` or `delta`."""
        from raftwood.pipeline.archive.spark import (  # noqa: PLC0415
            spark_files,
            spark_writer,
        )

        files = spark_files(spark, uri)
        writer = spark_writer(
            spark,
            files,
            access,
            format=format,
            fields=wanted_columns(fields),
            partitions_min=partitions_min,
        )
        return cls(
            access,
            ArchiveLog(files, project=access.project, logstore=access.logstore),
            writer,
            group=group,
            is_truncating=is_truncating,
            skips_freed=skips_freed,
        )

    def run(self) -> ArchiveReport:
        """Archives all that is there; then truncates what no reader needs, if requested."""
        access = self._access
        with LogHubClient.connect(
            access.gateways, access_key=access.access_key, access_secret=access.access_secret
        ) as client:
            self._register(client)
            before = self._archive.manifest()
            self._note(client, before)
            after = self._archived(lambda: client.describe(access.project, access.logstore))
            self._note(client, after)
            truncated = self._truncated(client, after) if self._is_truncating else {}
        self._archive.clean(commits=len(after.commits))
        added = after.commits[len(before.commits) :]
        return ArchiveReport(
            rows=after.rows - before.rows,
            files=sum(len(commit.files) for commit in added),
            archived=after.archived(),
            truncated=truncated,
            gaps=len(after.gaps),
        )

    def _register(self, client: LogHubClient) -> None:
        """Runs first: from now on retention by size spares what is not archived."""
        access = self._access
        with suppress(ConsumerGroupExists):
            client.create_group(access.project, access.logstore, self._group)

    def _archived(self, describe: Callable[[], list[ShardDetail]]) -> ArchiveManifest:
        for _ in range(_ATTEMPTS_MAX):
            # First the logs, then the archive: another archiver may be running, see `reader.look`.
            views = shard_views(describe())
            manifest = self._archive.manifest()
            number = len(manifest.commits)
            unfinished = self._writer.pending(number)
            written = unfinished
            if written is None:
                ranges = plan(manifest.shards, views, skips_freed=self._skips_freed)
                if not ranges:
                    return manifest
                written = self._written(ranges, number)
                if written is None:
                    continue
            commit = Commit(
                project=self._access.project,
                logstore=self._access.logstore,
                format=self._writer.format,
                ranges=written.ranges,
                files=written.files,
                fields=written.fields,
                made_ms=self._clock.wall_ns() // 1_000_000,
            )
            if not self._archive.add(commit, number=number):
                self._tell_overtaken()
            elif unfinished is None:
                return self._archive.manifest()
        raise Conflict(
            f"other archivers of {self._archive.files.uri} were faster {_ATTEMPTS_MAX} times: let "
            "one of them run at a time"
        )

    def _written(self, ranges: Sequence[ArchivedRange], number: int) -> WrittenFiles | None:
        """Writes the files of a commit. Returns None if another archiver was faster: it removes
        what can no longer be committed, even while that is being written.
        """
        try:
            return self._writer.write(ranges, number=number)
        except (OSError, RaftwoodError):
            is_overtaken = len(self._archive.manifest().commits) > number
            if not is_overtaken and self._writer.pending(number) is None:
                raise
        self._tell_overtaken()
        return None

    def _tell_overtaken(self) -> None:
        _log.info("another archiver was faster", archive=self._archive.files.uri)

    def _note(self, client: LogHubClient, manifest: ArchiveManifest) -> None:
        """Sets the checkpoints of the archive's group to what is archived."""
        access = self._access
        noted = {
            each.shard: each.checkpoint
            for each in client.checkpoints(access.project, access.logstore, self._group)
        }
        for shard, position in _changed(noted, manifest.archived()).items():
            with suppress(ShardNotFound):  # it was deleted meanwhile
                client.set_checkpoint(
                    access.project, access.logstore, self._group, shard=shard, position=position
                )

    def _truncated(self, client: LogHubClient, manifest: ArchiveManifest) -> dict[int, Position]:
        access = self._access
        details = client.describe(access.project, access.logstore)
        required = {
            each.shard.id: Position(int(each.required))
            for each in details
            if each.required is not None
        }
        wanted = truncatable(manifest.archived(), shard_views(details), required)
        found = {}
        for shard, before in wanted.items():
            with suppress(ShardNotFound):
                found[shard] = client.truncate_shard(
                    access.project, access.logstore, shard=shard, before=before
                )
        return found


def _changed(noted: Mapping[int, str], archived: Mapping[int, Position]) -> dict[int, Position]:
    """Returns the positions that have moved, of shards that are still in the stream."""
    return {
        shard: position
        for shard, position in archived.items()
        if shard in noted and (not noted[shard] or decode_cursor(noted[shard]) != position)
    }
