"""Which records a job is about, by their times."""

from datetime import UTC, datetime

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as f

from raftwood.base.errors import InvalidConfiguration


class TimeRange(msgspec.Struct, frozen=True):
    """`begin` ≤ time < `end`, in microseconds since 1970; None where there is no bound."""

    begin_us: int | None
    end_us: int | None

    def condition(self) -> Column:
        """Of the column `time`."""
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
    """Of ISO 8601; UTC where it names no zone."""
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
