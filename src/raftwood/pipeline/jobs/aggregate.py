"""`Aggregate`: figures over windows of event time, with a watermark behind which rows are late."""

from typing import Literal

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from raftwood.pipeline.jobs.job import duration_s
from raftwood.pipeline.jobs.query import StreamingJob, StreamOptions


class AggregateOptions(StreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Windows, groups and figures."""

    window: str
    """The length of a window, such as `1 minute`."""
    slide: str | None = None
    """The interval at which windows begin; by default, each begins where the last one ended."""
    watermark: str = "10 minutes"
    """How much later than the newest row a row may come; later ones are counted and left out."""
    time: str = "time"
    """The column, or an expression, with a row's time."""
    group_by: tuple[str, ...] = ()
    measures: dict[str, str] = msgspec.field(default_factory=lambda: {"rows": "count(*)"})
    """Names, each with an aggregate in SQL."""
    emits: Literal["final", "changes"] = "final"
    """`final`: writes a window once, when it can no longer change. `changes`: writes a window after
    every micro-batch that changed it; its last row is right.
    """


class Aggregate(StreamingJob[AggregateOptions]):
    """Windows of event time."""

    kind = "aggregate"
    options_type = AggregateOptions

    def check(self) -> None:
        for text in (self.options.window, self.options.slide, self.options.watermark):
            if text is not None:
                duration_s(text)
        if not self.options.measures:
            raise self.invalid("measures is empty: give one such as rows = 'count(*)'")

    @property
    def key_column(self) -> str | None:
        # One window's figures stay in order, so that a reader finds the last ones last.
        return self.options.key_column or "window_start"

    @property
    def order(self) -> tuple[str, ...]:
        return ("window_start", *self.options.group_by)

    @property
    def output_mode(self) -> str:
        return "append" if self.options.emits == "final" else "update"

    def build(self, rows: DataFrame) -> DataFrame:
        options = self.options
        windows = f.window("event_time", options.window, options.slide)
        figures = [f.expr(text).alias(name) for name, text in options.measures.items()]
        return (
            rows.withColumn("event_time", f.expr(options.time).cast("timestamp"))
            .withWatermark("event_time", options.watermark)
            .groupBy(windows, *options.group_by)
            .agg(*figures)
            .select(
                f.col("window.start").alias("time"),
                f.col("window.start").cast("string").alias("window_start"),
                f.col("window.end").cast("string").alias("window_end"),
                *options.group_by,
                *options.measures,
            )
        )
