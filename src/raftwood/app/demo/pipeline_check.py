"""Whether all figures of the pipeline's demo agree: what went in, and what came out of each end."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from raftwood.app.demo.web_truth import WebTruth

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


class Check(msgspec.Struct, frozen=True):
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
) -> list[Check]:
    """`kept` are the minutes as Zeppelin has them."""
    total = truth.total
    return [
        Check("lines made → lines in the stream in DLOG", total.requests, figures.lines_stored),
        Check("lines made → parsed, archive ∪ tail", total.requests, figures.parsed),
        Check("bytes served → parsed, archive ∪ tail", total.bytes, figures.parsed_bytes),
        Check("lines shipped before the archive → archived", archived_lines, figures.archived),
        Check("lines shipped after it → tail", total.requests - archived_lines, figures.tail),
        Check("shards → truncated", figures.shards, figures.shards_truncated),
        Check("errors made → stream of errors", total.errors, figures.errors),
        Check("errors made → parsed, archive ∪ tail", total.errors, figures.parsed_errors),
        Check("lines made → sum of the minutes", total.requests, _requests(minutes)),
        Check("errors made → sum of the minutes", total.errors, sum(m.errors for m in minutes)),
        Check(
            "minutes → minutes with the right figures", len(truth.minutes), _right(truth, minutes)
        ),
        Check("lines made → sum of the keys in Zeppelin", total.requests, _requests(kept)),
        Check("minutes → keys in Zeppelin, all right", len(truth.minutes), _right(truth, kept)),
        Check("minutes → keys in Zeppelin", len(truth.minutes), len(kept)),
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
