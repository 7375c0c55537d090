"""Which ledgers of a log may be freed: shrinking, retention, and orphans. Pure rules.

All of them change the record first; ledgers are deleted once the record does not name them any
more. In the other order a crash in between, or a lost compare-and-set, leaves a record that names
ledgers which are gone: readers fail there, and a take-over cannot recover them (planted bug
"deletes before the record says so").
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.log.meta import LedgerInfo, LogMeta

SPARED: Final = 2
"""The last two ledgers stay: they may be open, and a take-over has to fence them."""


def shrunk(
    meta: LogMeta, before: Position, *, now_ms: int
) -> tuple[LogMeta, tuple[LedgerInfo, ...]]:
    """Returns the record without what is below a position, and the ledgers to delete.

    What is below can't be read any more from then on, though its ledger may stay. Ledgers that a
    take-over has just fenced stay for a while, since their fences go with them
    (`test_shrinking_spares_the_last_two_and_what_was_fenced_of_late`).
    """
    first = max(meta.first, before)
    ledgers = meta.ledgers
    count = 0
    # The last ledger with entries stays as well, even if all of it is freed: its entries carry the
    # producers' sequences, without which the next writer stores a repeated append twice
    # (docs/decisions/0017).
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
    """Returns where a log begins by its retention.

    Whole ledgers that are too old or too much go, up to the first that a durable cursor still needs
    (`test_retention_goes_by_age_and_by_bytes_and_heeds_cursors`). A ledger goes by the time of its
    last entry: it would otherwise take messages with it that are within the retention.
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
    """The record with a ledger marked as offloaded: readers go to its copy."""
    return replace(
        meta,
        ledgers=tuple(
            replace(each, is_offloaded=True) if each.ledger == ledger else each
            for each in meta.ledgers
        ),
    )


def orphans(meta: LogMeta | None, ledgers: Iterable[int]) -> list[int]:
    """The ledgers made for a log that can never come into its list.

    A writer that died between the creation of a ledger and the change of the record leaves one. A
    ledger that comes into the list is above all in it: one that is above the last may be about to
    come, and deleting it would lose what is acked in it a moment later. Where there is no such log
    any more, none can come (`test_an_orphan_is_below_the_last_ledger_and_in_no_list`).
    """
    if meta is None:
        return sorted(ledgers)
    listed = {each.ledger for each in meta.ledgers if not each.is_offloaded}
    return sorted(each for each in ledgers if each < meta.last_ledger and each not in listed)
