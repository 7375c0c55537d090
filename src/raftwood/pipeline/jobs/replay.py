"""`Replay`: what a stream's log has of a time range, sent to another stream once more."""

from typing import ClassVar

from pyspark.sql import DataFrame

from raftwood.pipeline.jobs.job import JobOptions
from raftwood.pipeline.jobs.streaming_job import StreamingJob, StreamOptions
from raftwood.pipeline.jobs.time_range import time_range, time_us
from raftwood.pipeline.jobs.transform import with_sql


class ReplayOptions(StreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records; `trigger` is best left as it is, for a replay to have an end."""

    begin: str | None = None
    """Records from this time on, such as 2026-10-01T12:00:00Z."""
    end: str | None = None
    """Records before this time."""
    received_since: str | None = None
    """Reads from what was received at this time on, to pass over what is long before."""
    sql: str | None = None
    """A query over `input`; else records go as they are."""
    holds_log: bool = False


class Replay(StreamingJob[ReplayOptions]):
    """Read from the log alone; `Backfill` reads the archive as well."""

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
