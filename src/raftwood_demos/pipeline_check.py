"""Whether all figures of the pipeline's demo agree: what went in, and what came out of each end.

`WebTruth` counts the lines that were made, line by line, without Spark.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

_LINE: Final = re.compile(r'\[([^\]]+)\] "[^"]*" ([0-9]+) ([0-9]+) ')


class MinuteCount(msgspec.Struct):
    """Figures of one minute."""

    requests: int = 0
    errors: int = 0
    bytes: int = 0


class WebTruth:
    """Give it each line; minutes are named as the aggregate names its windows."""

    def __init__(self) -> None:
        self.minutes: dict[str, MinuteCount] = {}
        self._names: dict[str, str] = {}

    def add(self, line: str) -> None:
        found = _LINE.search(line)
        assert found is not None, f"not a line of a web server: {line!r}"
        time, status, size = found.groups()
        minute = self.minutes.setdefault(self._name(time), MinuteCount())
        minute.requests += 1
        minute.errors += status >= "500"
        minute.bytes += int(size)

    def _name(self, time: str) -> str:
        start = time[:17]
        name = self._names.get(start)
        if name is None:
            moment = datetime.strptime(time, "%d/%b/%Y:%H:%M:%S.%f %z").astimezone(UTC)
            name = self._names[start] = f"{moment:%Y-%m-%d %H:%M}:00"
        return name

    @property
    def total(self) -> MinuteCount:
        minutes = self.minutes.values()
        return MinuteCount(
            sum(each.requests for each in minutes),
            sum(each.errors for each in minutes),
            sum(each.bytes for each in minutes),
        )


_MINUTE_COLUMNS: Final = (
    "shard",
    "position",
    "index",
    "window_start string",
    "requests bigint",
    "errors bigint",
    "bytes bigint",
    "p95_ms double",
)


class MinuteRow(msgspec.Struct, frozen=True):
    """A minute as the aggregate has it."""

    minute: str
    requests: int
    errors: int
    bytes: int
    p95_ms: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of each place, read back."""

    lines_stored: int
    parsed: int
    """Archive and log together."""
    parsed_errors: int
    parsed_bytes: int
    archived: int
    tail: int
    errors: int
    shards_truncated: int
    shards: int


class FigureCheck(msgspec.Struct, frozen=True):
    """Two figures that must be the same."""

    what: str
    expected: int
    found: int

    @property
    def held(self) -> bool:
        return self.expected == self.found


def checks(
    truth: WebTruth,
    figures: Figures,
    minutes: list[MinuteRow],
    kept: list[MinuteRow],
    *,
    archived_lines: int,
) -> list[FigureCheck]:
    """`kept` are the minutes as Zeppelin has them."""
    total = truth.total
    return [
        FigureCheck(
            "lines made → lines in the stream in DLOG", total.requests, figures.lines_stored
        ),
        FigureCheck("lines made → parsed, archive ∪ tail", total.requests, figures.parsed),
        FigureCheck("bytes served → parsed, archive ∪ tail", total.bytes, figures.parsed_bytes),
        FigureCheck(
            "lines shipped before the archive → archived", archived_lines, figures.archived
        ),
        FigureCheck("lines shipped after it → tail", total.requests - archived_lines, figures.tail),
        FigureCheck("shards → truncated", figures.shards, figures.shards_truncated),
        FigureCheck("errors made → stream of errors", total.errors, figures.errors),
        FigureCheck("errors made → parsed, archive ∪ tail", total.errors, figures.parsed_errors),
        FigureCheck("lines made → sum of the minutes", total.requests, _requests(minutes)),
        FigureCheck(
            "errors made → sum of the minutes", total.errors, sum(m.errors for m in minutes)
        ),
        FigureCheck(
            "minutes → minutes with the right figures", len(truth.minutes), _right(truth, minutes)
        ),
        FigureCheck("lines made → sum of the keys in Zeppelin", total.requests, _requests(kept)),
        FigureCheck(
            "minutes → keys in Zeppelin, all right", len(truth.minutes), _right(truth, kept)
        ),
        FigureCheck("minutes → keys in Zeppelin", len(truth.minutes), len(kept)),
    ]


def _requests(minutes: list[MinuteRow]) -> int:
    return sum(each.requests for each in minutes)


def _right(truth: WebTruth, minutes: list[MinuteRow]) -> int:
    """How many have the figures that are known of them."""
    return sum(
        1
        for each in minutes
        if (known := truth.minutes.get(each.minute)) is not None
        and (known.requests, known.errors, known.bytes) == (each.requests, each.errors, each.bytes)
    )


def read_minutes(
    read: Callable[..., Any], project: str, access: Mapping[str, str]
) -> list[MinuteRow]:
    """The last figures of each minute: the aggregate sends them whenever they have changed."""
    table = read(project, "minutes", columns=list(_MINUTE_COLUMNS), **access)
    rows = sorted(table.to_pylist(), key=lambda row: (row["shard"], row["position"], row["index"]))
    last = {row["window_start"]: row for row in rows}
    return [
        MinuteRow(minute, row["requests"], row["errors"], row["bytes"], row["p95_ms"] or 0.0)
        for minute, row in sorted(last.items())
    ]
