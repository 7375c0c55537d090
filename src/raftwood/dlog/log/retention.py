"""Which ledgers of a log may be freed: shrinking, retention, and orphans. Pure rules."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.log.meta import LedgerInfo, LogMeta

SPARED: Final = 2


def shrunk(
    meta: LogMeta, before: Position, *, now_ms: int
) -> tuple[LogMeta, tuple[LedgerInfo, ...]]:
    """The record without what is below a position, and the ledgers that go.

    What is below can't be read any more from then on, though its ledger may stay.
    """
    first = max(meta.first, before)
    ledgers = meta.ledgers
    count = 0
    filled = [place for place, each in enumerate(ledgers) if each.last_entry >= 0]
    limit = min(len(ledgers) - SPARED, filled[-1] if filled else len(ledgers))
    grace_ms = meta.config.grace_ms
    while count < limit and ledgers[count].may_go(now_ms=now_ms, grace_ms=grace_ms):
        if position_of_entry(ledger=ledgers[count + 1].ledger, entry=0) > first and (
            ledgers[count].end > first
        ):
            break
        count += 1
    freed = ledgers[:count]
    return (
        replace(
            meta,
            first=first,
            ledgers=ledgers[count:],
            shrunk_bytes=meta.shrunk_bytes + sum(each.bytes for each in freed),
        ),
        freed,
    )


def retained_from(meta: LogMeta, *, now_ms: int, needed: Iterable[Position] = ()) -> Position:
    """Where a log begins by its retention: whole ledgers too old or too much, up to the first that
    is needed by somebody who asked for it.
    """
    config = meta.config
    left = sum(each.bytes for each in meta.ledgers)
    first = meta.first
    limit = min(needed, default=None)
    for info, following in zip(meta.ledgers, meta.ledgers[1:], strict=False):
        start = position_of_entry(ledger=following.ledger, entry=0)
        is_old = config.retention_ms > 0 and info.last_ms < now_ms - config.retention_ms
        is_much = config.retention_bytes > 0 and left > config.retention_bytes
        if following is meta.ledgers[-1] or not info.is_closed or not (is_old or is_much):
            break
        if limit is not None and limit < start and limit < info.end:
            break
        left -= info.bytes
        first = max(first, start)
    return first


def offloaded(meta: LogMeta, *, ledger: int) -> LogMeta:
    """The record with a ledger's copy in its place."""
    return replace(
        meta,
        ledgers=tuple(
            replace(each, is_offloaded=True) if each.ledger == ledger else each
            for each in meta.ledgers
        ),
    )


def orphans(meta: LogMeta | None, ledgers: Iterable[int]) -> list[int]:
    """Of the ledgers made for a log, those that can never come into its list.

    A ledger that comes into the list is above all in it. One that is above the last may be just
    about to; where there is no such log any more, none can.
    """
    if meta is None:
        return sorted(ledgers)
    listed = {each.ledger for each in meta.ledgers if not each.is_offloaded}
    return sorted(each for each in ledgers if each < meta.last_ledger and each not in listed)
