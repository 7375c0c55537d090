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
    """How an entry is protected on its way through bookies: BookKeeper's four kinds."""

    CRC32C = "crc32c"
    CRC32 = "crc32"
    MAC = "mac"
    """HMAC with SHA-1 under the ledger's password."""
    DUMMY = "dummy"
    """No protection."""


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
        """The places of the ensemble that an entry goes to."""
        return [(entry + each) % self.ensemble for each in range(self.write_quorum)]


class LedgerState(StrEnum):
    """A ledger's life, in order."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    """A recovery is finding out what the ledger holds; its writer can change nothing any more."""
    CLOSED = "closed"


class Segment(msgspec.Struct, frozen=True):
    """The bookies that have the entries from `first` up to the next segment."""

    first: EntryId
    bookies: tuple[BookieId, ...]


class LedgerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger's replication, segments, state and end.

    Changed by compare-and-set alone: a writer and a recovery that both replace a bookie would
    otherwise overwrite each other, and entries would be where the metadata do not say (planted bug
    "a lost compare-and-set is taken for done").
    """

    config: LedgerConfig
    segments: tuple[Segment, ...]
    """In order; the first begins at entry 0."""
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId = NO_ENTRY
    """The last entry, once closed."""
    length_bytes: int = 0
    """The length of all entries' data, once closed."""
    created_ms: int = 0
    properties: dict[str, bytes] = {}
    creation_token: int = 0
    """Random. A client that lost the answer reads the metadata, and recognizes its own creation by
    this token (`test_a_lost_answer_makes_no_second_ledger`)."""

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def segment_of(self, entry: int) -> Segment:
        """The segment that holds an entry, or would hold it."""
        return next(each for each in reversed(self.segments) if each.first <= max(entry, 0))


class BookieInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bookie that has registered."""

    id: BookieId
    rack: str = ""
    """Its failure domain, such as a host or a rack; empty: unknown."""
    is_read_only: bool = False


def marked(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """The metadata in recovery: from now on the writer can change neither ensemble nor state.

    Fencing alone is not enough. A writer that meets fenced bookies might take them for broken ones
    and go on with new bookies, which no recovery asks or fences.
    """
    if metadata.state is not LedgerState.OPEN:
        return None
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def with_segment(
    segments: tuple[Segment, ...], first: int, bookies: tuple[BookieId, ...]
) -> tuple[Segment, ...]:
    """The segments with others in charge from an entry on.

    Where nothing was confirmed since the last change, that change is replaced: two segments with
    one first entry would leave open which of them has it
    (`test_a_change_before_the_first_ack_replaces_the_first_segment`).
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
    """The metadata with another ensemble of the writer from an entry on.

    `Fenced` where a recovery has begun, or another process has changed the ensemble: a ledger has
    one writer. The change is written before anything of the new segment is acked; a writer that
    acks first and dies leaves entries where no reader looks (planted bug "a changed ensemble is
    told to nobody").
    """
    if metadata.state is not LedgerState.OPEN:
        raise Fenced(f"the ledger is {metadata.state}: another writer has taken over")
    last = metadata.segments[-1]
    if last == Segment(EntryId(first), after):
        return None  # An answer was lost: the change is stored.
    if last.bookies != before:
        raise Fenced("the ledger's ensemble was changed by another writer")
    return replace(metadata, segments=with_segment(metadata.segments, first, after))


def closed_by_writer(
    metadata: LedgerMetadata, *, last_entry: int, length_bytes: int
) -> LedgerMetadata | None:
    """The metadata closed behind what was acked; `Fenced` where a recovery has begun or has closed
    the ledger elsewhere. A recovery may have found entries that were stored and not acked: readers
    may have seen its end, so that the writer must not set another one."""
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
    """The metadata closed behind what a recovery found; None where another recovery has won.

    A recovery asked and fenced the bookies of the segments in `found`. If the writer got a change
    of its ensemble through before the metadata were marked, its new bookies may have acked more:
    the recovery has to begin again.
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
