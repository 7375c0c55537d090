"""Which rows belong to one session: those of a key with no gap between them. No I/O, no Spark."""

from collections.abc import Iterable, Sequence

import msgspec


class Session(msgspec.Struct, array_like=True):
    """A visit so far; times in milliseconds."""

    start_ms: int
    end_ms: int
    """Of its last row."""
    rows: int
    sums: list[float]
    first: list[str | None]
    last: list[str | None]


class SessionRow(msgspec.Struct, frozen=True):
    """What of a row goes into its session."""

    time_ms: int
    sums: Sequence[float]
    texts: Sequence[str | None]


def with_rows(
    sessions: Sequence[Session], rows: Iterable[SessionRow], gap_ms: int
) -> list[Session]:
    """Sessions in order, no two nearer to one another than the gap; whatever order rows come in."""
    singles = [
        Session(row.time_ms, row.time_ms, 1, list(row.sums), list(row.texts), list(row.texts))
        for row in rows
    ]
    # Sorting keeps equals in their order, so the first of two rows at one time stays the first.
    merged: list[Session] = []
    for each in sorted([*sessions, *singles], key=_start):
        if merged and each.start_ms - merged[-1].end_ms < gap_ms:
            _join(merged[-1], each)
        else:
            merged.append(each)
    return merged


def _join(session: Session, later: Session) -> None:
    """Add one that does not start before it."""
    if later.end_ms >= session.end_ms:
        session.end_ms, session.last = later.end_ms, later.last
    session.rows += later.rows
    session.sums = [mine + its for mine, its in zip(session.sums, later.sums, strict=True)]


def _start(session: Session) -> int:
    return session.start_ms


def closed(
    sessions: Sequence[Session], *, watermark_ms: int, gap_ms: int
) -> tuple[list[Session], list[Session]]:
    """Those that no row can join any more, and those that are open."""
    over = [each for each in sessions if each.end_ms + gap_ms <= watermark_ms]
    return over, [each for each in sessions if each.end_ms + gap_ms > watermark_ms]
