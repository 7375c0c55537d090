"""What may become of a ledger's metadata; each is written by compare-and-set, or not at all.

A function returns the next metadata, or None where these ask for no change.
"""

from msgspec.structs import replace

from raftwood.base.errors import Conflict
from raftwood.dlog.errors import Fenced
from raftwood.dlog.ledgers.model import (
    BookieId,
    EntryId,
    LedgerMetadata,
    LedgerState,
    Segment,
)


def marked(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """In recovery: from now on its writer can change neither ensemble nor state."""
    if metadata.state is not LedgerState.OPEN:
        return None
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def with_segment(
    segments: tuple[Segment, ...], first: int, bookies: tuple[BookieId, ...]
) -> tuple[Segment, ...]:
    """From an entry on others have the entries; where nothing was confirmed since the last change,
    that one is replaced.
    """
    kept = tuple(each for each in segments if each.first < first)
    return (*kept, Segment(EntryId(first), bookies))


def with_ensemble(
    metadata: LedgerMetadata,
    *,
    before: tuple[BookieId, ...],
    first: int,
    after: tuple[BookieId, ...],
) -> LedgerMetadata | None:
    """The writer's ensemble is another one from an entry on; `Fenced` where that is not its own
    affair any more.
    """
    if metadata.state is not LedgerState.OPEN:
        raise Fenced(f"the ledger is {metadata.state}: another writer has taken over")
    last = metadata.segments[-1]
    if last == Segment(EntryId(first), after):
        return None  # An answer was lost: it is done.
    if last.bookies != before:
        raise Fenced("the ledger's ensemble was changed by another writer")
    return replace(metadata, segments=with_segment(metadata.segments, first, after))


def closed_by_writer(
    metadata: LedgerMetadata, *, last_entry: int, length_bytes: int
) -> LedgerMetadata | None:
    """Closed behind what was acked; `Fenced` where somebody else decides, or has decided else."""
    if metadata.is_closed and (metadata.last_entry, metadata.length_bytes) == (
        last_entry,
        length_bytes,
    ):
        return None
    if metadata.state is not LedgerState.OPEN:
        raise Fenced(f"the ledger is {metadata.state}: another writer has taken over")
    return _closed(metadata, metadata.segments, last_entry, length_bytes)


def closed_by_recovery(
    metadata: LedgerMetadata,
    *,
    found: LedgerMetadata,
    segments: tuple[Segment, ...],
    last_entry: int,
    length_bytes: int,
) -> LedgerMetadata | None:
    """Closed behind what a recovery found; None where another recovery has won.

    What it `found` stands only for the segments that it looked into.
    """
    if metadata.is_closed:
        return None
    if metadata.segments != found.segments:
        raise Conflict("the ledger's segments changed while it was recovered: recover it again")
    return _closed(metadata, segments, last_entry, length_bytes)


def _closed(
    metadata: LedgerMetadata,
    segments: tuple[Segment, ...],
    last_entry: int,
    length_bytes: int,
) -> LedgerMetadata:
    return replace(
        metadata,
        state=LedgerState.CLOSED,
        segments=segments,
        last_entry=EntryId(last_entry),
        length_bytes=length_bytes,
    )
