"""`Archive`: moves a stream's records to Parquet or Delta; then the log may be truncated."""

import time
from typing import Literal

from raftwood.pipeline.archive.archiver import Archiver, ArchiveReport
from raftwood.pipeline.jobs.job import Job, JobContext, JobOptions, JobState


class ArchiveOptions(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of the archive, and the treatment of the log."""

    to: str
    """A folder, or a place in an object store that Spark's Hadoop reaches."""
    format: Literal["parquet", "delta"] = "parquet"
    columns: tuple[str, ...] = ()
    """Contents that get columns of their own, such as `status int`."""
    truncates: bool = False
    """Truncates what is archived and needed by no reader."""
    skips_freed: bool = False
    """Continues if retention freed records before they were archived."""


class Archive(Job[ArchiveOptions]):
    """Runs the archiver repeatedly, as the trigger says."""

    kind = "archive"
    options_type = ArchiveOptions

    def work(self, context: JobContext) -> None:
        archiver = self.archiver(context)
        while True:
            began = time.monotonic()
            report = archiver.run()
            self.saw(report, time.monotonic() - began)
            interval_s = self.trigger.interval_s
            if interval_s is None or context.stop.wait(interval_s):
                return

    def archiver(self, context: JobContext) -> Archiver:
        options = self.options
        return Archiver.with_spark(
            context.spark,
            self.access.to(options.source),
            self.place(options.to),
            format=options.format,
            fields=options.columns,
            is_truncating=options.truncates,
            skips_freed=options.skips_freed,
        )

    def saw(self, report: ArchiveReport, seconds: float) -> None:
        """Reports the end of a run of the archiver."""
        self.tell(
            state=JobState.RUNNING,
            batches=self.progress.batches + 1,
            rows=self.progress.rows + report.rows,
            rows_per_s=round(report.rows / max(seconds, 0.001), 1),
            lag=0,
        )
