"""Metadata of a ledger: how it is replicated, which bookies hold which entries, and its state.

The functions below `BookieInfo` are the only changes that metadata can undergo. Each returns the
next metadata, or None if nothing has to change; the caller writes it by compare-and-set, or not at
all.
"""

import re
from enum import StrEnum
from typing import Final, NewType

import msgspec
from msgspec.structs import replace

from raftwood.base.errors import Conflict, InvalidInput
from raftwood.dlog.errors import Fenced

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)
"""HOST:PORT, or a name that the bookie registered under."""

NO_ENTRY: Final = EntryId(-1)
"""The last confirmed entry of a ledger without any."""
LEDGER_MAX: Final = (1 << 63) - 1
BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,254}|\[[0-9a-fA-F:.]+\]:[0-9]{1,5}")


class Digest(StrEnum):
    """How an entry is protected on its way through bookies; BookKeeper's four kinds."""

    CRC32C = "crc32c"
    CRC32 = "crc32"
    MAC = "mac"
    """HMAC with SHA-1 under the ledger's password."""
    DUMMY = "dummy"
    """Not at all."""


class LedgerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Entry n goes to the `write_quorum` bookies from place n of the ensemble on, and is acked once
    `ack_quorum` of them have it.
    """

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: Digest = Digest.CRC32C
    password: bytes = b""

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble <= 64:
            raise InvalidInput(
                f"ensemble {self.ensemble}, write quorum {self.write_quorum}, ack quorum "
                f"{self.ack_quorum}: give 1 ≤ ack quorum ≤ write quorum ≤ ensemble ≤ 64"
            )

    def places(self, entry: int) -> list[int]:
        """Where an entry goes in the ensemble."""
        return [(entry + each) % self.ensemble for each in range(self.write_quorum)]


class LedgerState(StrEnum):
    """A ledger's life, in order."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    """Its writer is fenced; whoever fenced it is finding out what it holds."""
    CLOSED = "closed"


class Segment(msgspec.Struct, frozen=True):
    """From an entry on, up to the next segment: who has the entries."""

    first: EntryId
    bookies: tuple[BookieId, ...]


class LedgerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a ledger apart from its entries; changed by compare-and-set alone."""

    config: LedgerConfig
    segments: tuple[Segment, ...]
    """In order; the first begins at entry 0."""
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId = NO_ENTRY
    """Once closed."""
    length_bytes: int = 0
    """Of all entries' data, once closed."""
    created_ms: int = 0
    properties: dict[str, bytes] = {}
    creation_token: int = 0
    """Random: tells whose creation it was where an answer was lost."""

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def segment_of(self, entry: int) -> Segment:
        """The one that holds an entry, or would."""
        return next(each for each in reversed(self.segments) if each.first <= max(entry, 0))


class BookieInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie that has registered."""

    id: BookieId
    rack: str = ""
    """Its failure domain, such as a host or a rack; empty: unknown."""
    is_read_only: bool = False


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
