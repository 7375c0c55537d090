"""`Sessionize`: joins rows of one key without a long gap into one row, when the session is over."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pandas
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from raftwood.pipeline.jobs.job import duration_s
from raftwood.pipeline.jobs.query import StreamingJob, StreamOptions


class RowSession(msgspec.Struct, array_like=True):
    """A session so far; times in milliseconds."""

    start_ms: int
    end_ms: int
    """The time of its last row."""
    rows: int
    sums: list[float]
    first: list[str | None]
    last: list[str | None]


class SessionRow(msgspec.Struct, frozen=True):
    """The part of a row that goes into its session."""

    time_ms: int
    sums: Sequence[float]
    texts: Sequence[str | None]


def with_rows(
    sessions: Sequence[RowSession], rows: Iterable[SessionRow], gap_ms: int
) -> list[RowSession]:
    """Adds rows, in any order; returns sessions in order, with a longer gap between any two."""
    singles = [
        RowSession(row.time_ms, row.time_ms, 1, list(row.sums), list(row.texts), list(row.texts))
        for row in rows
    ]
    # Sorting keeps equals in their order, so the first of two rows at one time stays the first.
    merged: list[RowSession] = []
    for each in sorted([*sessions, *singles], key=_start):
        if merged and each.start_ms - merged[-1].end_ms < gap_ms:
            _join(merged[-1], each)
        else:
            merged.append(each)
    return merged


def _join(session: RowSession, later: RowSession) -> None:
    """Joins a session with one that does not start before it."""
    if later.end_ms >= session.end_ms:
        session.end_ms, session.last = later.end_ms, later.last
    session.rows += later.rows
    session.sums = [mine + its for mine, its in zip(session.sums, later.sums, strict=True)]


def _start(session: RowSession) -> int:
    return session.start_ms


def closed(
    sessions: Sequence[RowSession], *, watermark_ms: int, gap_ms: int
) -> tuple[list[RowSession], list[RowSession]]:
    """Returns the sessions that no row can join any more, and the open ones."""
    over = [each for each in sessions if each.end_ms + gap_ms <= watermark_ms]
    return over, [each for each in sessions if each.end_ms + gap_ms > watermark_ms]


_STATE: Final = "sessions string"
_OUTPUT: Final = "time timestamp, session_key string, contents map<string,string>"
_decode: Final = msgspec.json.Decoder(list[RowSession]).decode


class SessionizeOptions(StreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key of sessions, and the kept values."""

    key: str
    """The column, or an expression, that identifies the owner of a row."""
    gap: str = "30 minutes"
    """A session is over after so long without a row."""
    watermark: str = "10 minutes"
    time: str = "time"
    sums: tuple[str, ...] = ()
    """Columns to add up."""
    ends: tuple[str, ...] = ()
    """Columns whose first and last values are kept."""


class Sessionize(StreamingJob[SessionizeOptions]):
    """Keeps the open sessions of each key as state, in text form."""

    kind = "sessionize"
    options_type = SessionizeOptions

    def check(self) -> None:
        duration_s(self.options.gap)
        duration_s(self.options.watermark)
        if self.options.key_column is not None:
            raise self.invalid("key_column is not for sessions: those of one key go together")

    @property
    def key_column(self) -> str:
        return "session_key"

    @property
    def order(self) -> tuple[str, ...]:
        return ("time", "session_key")

    def build(self, rows: DataFrame) -> DataFrame:
        options = self.options
        gap_ms = int(duration_s(options.gap) * 1000)
        return (
            rows.select(
                f.expr(options.key).cast("string").alias("key"),
                f.expr(options.time).cast("timestamp").alias("event_time"),
                *(f.expr(each).cast("double").alias(f"sum_{each}") for each in options.sums),
                *(f.expr(each).cast("string").alias(f"end_{each}") for each in options.ends),
            )
            .where("key IS NOT NULL AND event_time IS NOT NULL")
            .withWatermark("event_time", options.watermark)
            .groupBy("key")
            .applyInPandasWithState(
                _with_state(gap_ms, options.sums, options.ends),
                _OUTPUT,
                _STATE,
                "append",
                GroupStateTimeout.EventTimeTimeout,
            )
        )


def _with_state(
    gap_ms: int, sums: tuple[str, ...], ends: tuple[str, ...]
) -> Callable[[Any, Iterable[pandas.DataFrame], GroupState], Iterator[pandas.DataFrame]]:
    """Updates one key with the rows of a micro-batch, or with none after its timeout."""

    def update(
        key: Any, frames: Iterable[pandas.DataFrame], state: GroupState
    ) -> Iterator[pandas.DataFrame]:
        # Spark pickles this function, and the functions that it calls, by value.
        yield from _updated(key[0], frames, state, gap_ms, sums, ends)

    return update


def _updated(
    key: str,
    frames: Iterable[pandas.DataFrame],
    state: GroupState,
    gap_ms: int,
    sums: tuple[str, ...],
    ends: tuple[str, ...],
) -> Iterator[pandas.DataFrame]:
    sessions = _decode(state.get[0]) if state.exists else []
    if not state.hasTimedOut:
        rows = [row for frame in frames for row in _rows(frame, sums, ends)]
        sessions = with_rows(sessions, rows, gap_ms)
    watermark_ms = state.getCurrentWatermarkMs()
    over, still = closed(sessions, watermark_ms=watermark_ms, gap_ms=gap_ms)
    if still:
        state.update((msgspec.json.encode(still).decode(),))
        state.setTimeoutTimestamp(min(each.end_ms for each in still) + gap_ms)
    elif state.exists:
        state.remove()
    if over:
        yield _frame(key, over, sums, ends)


def _rows(
    frame: pandas.DataFrame, sums: tuple[str, ...], ends: tuple[str, ...]
) -> Iterator[SessionRow]:
    times = frame["event_time"].astype("datetime64[ms]").astype("int64")
    added = [frame[f"sum_{each}"].fillna(0.0) for each in sums]
    texts = [frame[f"end_{each}"].where(frame[f"end_{each}"].notna(), None) for each in ends]
    for place, time_ms in enumerate(times):
        yield SessionRow(
            int(time_ms),
            [float(column.iloc[place]) for column in added],
            [column.iloc[place] for column in texts],
        )


def _frame(
    key: str, sessions: list[RowSession], sums: tuple[str, ...], ends: tuple[str, ...]
) -> pandas.DataFrame:
    return pandas.DataFrame(
        {
            "time": pandas.to_datetime([each.start_ms for each in sessions], unit="ms"),
            "session_key": [key] * len(sessions),
            "contents": [_contents(key, each, sums, ends) for each in sessions],
        }
    )


def _contents(
    key: str, session: RowSession, sums: tuple[str, ...], ends: tuple[str, ...]
) -> dict[str, str]:
    found = {
        "key": key,
        "rows": str(session.rows),
        "start_ms": str(session.start_ms),
        "end_ms": str(session.end_ms),
    }
    found |= {
        f"sum_{name}": f"{value:.15g}" for name, value in zip(sums, session.sums, strict=True)
    }
    for name, first, last in zip(ends, session.first, session.last, strict=True):
        found |= {f"first_{name}": first or "", f"last_{name}": last or ""}
    return found
