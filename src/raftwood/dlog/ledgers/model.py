"""What a ledger is: how it is replicated, who has which entries, and whether it is still open."""

import re
from enum import StrEnum
from typing import Final, NewType

import msgspec

from raftwood.base.errors import InvalidInput

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
