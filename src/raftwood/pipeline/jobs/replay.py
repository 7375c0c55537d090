"""`Replay`: sends a time range of a stream's log to another stream once more.

`Backfill` does the same with the whole history of the stream, from its archive and its log.
"""

from datetime import UTC, datetime
from typing import ClassVar

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from raftwood.base.errors import InvalidConfiguration
from raftwood.pipeline.jobs.job import JobOptions
from raftwood.pipeline.jobs.query import StreamingJob, StreamOptions
from raftwood.pipeline.jobs.transform import with_sql


class TimeRange(msgspec.Struct, frozen=True):
    """`begin` ≤ time < `end`, in microseconds since 1970; None means no bound."""

    begin_us: int | None
    end_us: int | None

    def condition(self) -> Column:
        """Returns the condition on the column `time`."""
        found = f.lit(True)
        if self.begin_us is not None:
            found = found & (f.col("time") >= f.timestamp_micros(f.lit(self.begin_us)))
        if self.end_us is not None:
            found = found & (f.col("time") < f.timestamp_micros(f.lit(self.end_us)))
        return found


def time_range(begin: str | None, end: str | None) -> TimeRange:
    found = TimeRange(
        None if begin is None else time_us(begin), None if end is None else time_us(end)
    )
    if found.begin_us is not None and found.end_us is not None and found.begin_us >= found.end_us:
        raise InvalidConfiguration(f"no time is between {begin} and {end}: give the earlier first")
    return found


def time_us(text: str) -> int:
    """Parses ISO 8601; a time without a zone is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidConfiguration(
            f"{text!r} is no time: give one such as 2026-10-01T12:00:00Z"
        ) from error
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since = found - epoch
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class ReplayOptions(StreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The records to send; leave `trigger` at its default, so that a replay ends."""

    begin: str | None = None
    """Records from this time on, such as 2026-10-01T12:00:00Z."""
    end: str | None = None
    """Records before this time."""
    received_since: str | None = None
    """Reads from what was received at this time on, to skip older records."""
    sql: str | None = None
    """A query over `input`; by default records are sent unchanged."""
    holds_log: bool = False


class Replay(StreamingJob[ReplayOptions]):
    """Reads only the log; `Backfill` reads the archive as well."""

    kind = "replay"
    options_type: ClassVar[type[JobOptions]] = ReplayOptions

    def check(self) -> None:
        time_range(self.options.begin, self.options.end)

    def source_options(self) -> dict[str, str]:
        found = super().source_options()
        if self.options.received_since is not None:
            found["startingTimestamp"] = str(time_us(self.options.received_since) // 1000)
        return found

    def build(self, rows: DataFrame) -> DataFrame:
        wanted = rows.where(time_range(self.options.begin, self.options.end).condition())
        return wanted if self.options.sql is None else with_sql(wanted, self.options.sql)


class BackfillOptions(ReplayOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a replay, and the archive."""

    archive: str
    """The archive's folder, or its place in an object store."""


class Backfill(Replay):
    """History and tail share one space of positions, so one query reads both."""

    kind = "backfill"
    options_type = BackfillOptions
    options: BackfillOptions

    def source_options(self) -> dict[str, str]:
        return {**super().source_options(), "archive": self.place(self.options.archive)}
