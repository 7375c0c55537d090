"""`LedgerDescriptor`: one ledger as a bookie has it; rules without I/O, and its durable state.

- The first add or fence brings the ledger's master key; a client with another key is refused.
- A fenced ledger takes entries only from clients that recover it. This one rule keeps two writers
  apart: an old writer may sleep, be cut off, or never hear that it was replaced.
- An entry that is there already is acked again, and not stored again. Recoveries and repairs store
  what is already here, and any answer may be lost.

`Limbo` answers for ledgers whose entries the bookie may have forgotten. `EntryIndex` takes 16 bytes
for each entry. `LastConfirmedWaiters` are long polls for a higher last confirmed entry.
"""

import asyncio
import hmac
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from raftwood.base.errors import (
    InvalidInput,
    Overloaded,
    PermissionDenied,
    RaftwoodError,
    StoreDamaged,
)
from raftwood.base.files import Buffer
from raftwood.base.versions import unsupported
from raftwood.dlog.errors import BookieUnavailable, EntryUnknown, Fenced, NoSuchEntry
from raftwood.dlog.ledgers.metadata import LEDGER_MAX, BookieId


class EntryIndex:
    """Maps an entry to its arrival, counted from 1: its index in the segment log.

    The two differ once a recovery or a repair brings an older entry behind a newer one (planted bug
    "arrivals are taken for entries"). Entries come nearly in order, with gaps where the ledger is
    striped: two sorted columns, to whose end nearly all are added.
    """

    __slots__ = ("_arrivals", "_entries", "next_arrival")

    def __init__(self) -> None:
        self._entries = array("q")
        self._arrivals = array("q")
        self.next_arrival = 1

    @classmethod
    def of_arrivals(cls, entries: Sequence[int]) -> "EntryIndex":
        """Builds the index from entries in the order in which they arrived."""
        index = cls()
        order = sorted(range(len(entries)), key=entries.__getitem__)
        index._entries.extend(entries[each] for each in order)
        index._arrivals.extend(each + 1 for each in order)
        index.next_arrival = len(entries) + 1
        return index

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def highest(self) -> int:
        """The highest entry number; −1 if there is none."""
        return self._entries[-1] if self._entries else -1

    def add(self, entry: int) -> None:
        """Adds the next entry to arrive; it must not be in the index."""
        entries = self._entries
        if not entries or entry > entries[-1]:
            entries.append(entry)
            self._arrivals.append(self.next_arrival)
        else:
            place = bisect_left(entries, entry)
            entries.insert(place, entry)
            self._arrivals.insert(place, self.next_arrival)
        self.next_arrival += 1

    def arrival_of(self, entry: int) -> int:
        """Returns an entry's arrival; 0 if the entry is not here."""
        entries = self._entries
        if not entries or entry > entries[-1]:
            return 0
        place = bisect_left(entries, entry)
        return self._arrivals[place] if entries[place] == entry else 0


FORMAT_VERSION: Final = 1
HEAD: Final = Struct(">qqqq")
"""The head of a packed entry: ledger, entry, last confirmed, length of all data so far."""
MASTER_KEY_BYTES_MAX: Final = 64
ENTRY_MAX: Final = (1 << 63) - 1


class LedgerNote(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The durable state of a ledger beside its entries.

    The fence is part of it: a bookie that forgot it in a restart would ack the old writer's entries
    behind the end that the recovery found (planted bug "a fence is forgotten").
    """

    master_key: bytes
    is_fenced: bool = False
    published: int = -1
    """The last confirmed entry, as its writer published it apart from entries."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LedgerNote).decode


def encode_note(note: LedgerNote) -> bytes:
    return bytes((FORMAT_VERSION,)) + _encode(note)


def decode_note(data: bytes, *, ledger: int) -> LedgerNote:
    """Decodes a note; `StoreDamaged` if it is none, `UnsupportedVersion` if it is newer."""
    if data and data[0] > FORMAT_VERSION:
        raise unsupported(f"what is kept of ledger {ledger}", data[0], FORMAT_VERSION)
    try:
        return _decode(data[1:])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StoreDamaged(f"what is kept of ledger {ledger} cannot be read: {error}") from None


class LedgerDescriptor:
    """One ledger's part in this bookie."""

    __slots__ = ("index", "last_confirmed", "ledger", "note")

    def __init__(self, ledger: int, note: LedgerNote, index: EntryIndex | None = None) -> None:
        self.ledger = ledger
        self.note = note
        self.index = EntryIndex() if index is None else index
        self.last_confirmed = note.published
        """The highest one that the bookie knows, from entries' heads as well."""

    def refusal(self, master_key: bytes) -> RaftwoodError | None:
        """The error for a client whose key may not change the ledger; None if it may."""
        if hmac.compare_digest(master_key, self.note.master_key):
            return None
        return PermissionDenied(f"ledger {self.ledger} has another password: give that one")

    def refusal_of_add(self, master_key: bytes, *, is_recovery: bool) -> RaftwoodError | None:
        """The error for an entry that may not be added; None if it may."""
        if self.note.is_fenced and not is_recovery:
            return Fenced(f"ledger {self.ledger} was fenced: another writer has taken over")
        return self.refusal(master_key)

    def arrival_of(self, entry: int) -> int:
        """Returns the arrival of an entry, or with −1 of the highest one; `NoSuchEntry`."""
        arrival = self.index.arrival_of(self.index.highest if entry == -1 else entry)
        if not arrival:
            what = "any entry" if entry == -1 else f"entry {entry}"
            raise NoSuchEntry(f"this bookie does not have {what} of ledger {self.ledger}")
        return arrival


class Limbo:
    """The ledgers that existed when a bookie began anew: it may have had any of their entries, and
    may have been fenced for them (docs/decisions/0032).

    A recovery counts bookies that lack an entry. One that has forgotten it and says "no such entry"
    completes the count, and the ledger is closed in front of what was acked (planted bug "a bookie
    that began anew says that it has no such entry"). One that has forgotten a fence completes an
    ack quorum for the old writer (planted bug "a bookie that began anew takes entries of a writer
    that it had fenced").

    Doubts end once a repair has gone through all ledgers. Then each ledger that still names the
    bookie is settled, and has its entries here; a writer that chooses the bookie later is refused,
    so that no reader asks it for those entries. Which ledgers were fenced remains unknown, so the
    refusal never ends.
    """

    __slots__ = ("bookie", "doubts_below", "refuses_below")

    def __init__(self, bookie: BookieId, refuses_below: int = 0, doubts_below: int = 0) -> None:
        self.bookie = bookie
        self.refuses_below = refuses_below
        """Ledgers with lower numbers take entries from recoveries and repairs alone."""
        self.doubts_below = doubts_below
        """The bookie may have lost entries of ledgers with lower numbers."""

    def refusal_of_add(self, ledger: int, *, is_recovery: bool) -> RaftwoodError | None:
        """The error for an entry that may not be added: the ledger may have been fenced and closed.

        Not `Fenced`, on which a writer gives up for ever: the ledger may be open and well, and its
        writer goes on with another bookie in this one's place.
        """
        if ledger >= self.refuses_below or is_recovery:
            return None
        return BookieUnavailable(
            f"bookie {self.bookie} began anew after ledger {ledger} was made: it takes no entries "
            "of it but copies"
        )

    def doubt(self, ledger: int, entry: int) -> EntryUnknown | None:
        """The answer for an entry that is not there, instead of "no such entry".

        −1 asks for the highest entry: even where some were copied back, the highest may be missing.
        """
        if ledger >= self.doubts_below:
            return None
        what = "the last entry" if entry == -1 else f"entry {entry}"
        return EntryUnknown(
            f"bookie {self.bookie} began anew after ledger {ledger} was made, and may have had "
            f"{what} of it: run `raftwood bookie repair {self.bookie}`"
        )


def checked_head(packed: Buffer) -> tuple[int, int, int]:
    """Ledger, entry and last confirmed entry, as a packed entry's head names them."""
    if len(packed) < HEAD.size:
        raise InvalidInput(f"a packed entry has {len(packed)} bytes, less than its head")
    ledger, entry, last_confirmed, _ = HEAD.unpack_from(packed)
    if not 0 <= ledger < LEDGER_MAX or not 0 <= entry < ENTRY_MAX:
        raise InvalidInput(f"entry {entry} of ledger {ledger}: give numbers from 0 to 2^63-2")
    return ledger, entry, last_confirmed


WAIT_MS_MAX: Final = 60_000


class LastConfirmedWaiters:
    """Long polls by ledger; each ends with news or with its time."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._waiting: dict[int, dict[asyncio.Future[None], int]] = {}
        self.count = 0

    async def wait(self, ledger: int, *, after: int, timeout_ms: int) -> None:
        """Waits until `heard` reports a last confirmed entry above `after`, or the time is over."""
        if self.count >= self._count_max:
            raise Overloaded(f"{self.count} readers wait at this bookie already: try again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(min(timeout_ms, WAIT_MS_MAX) / 1000, _resolve, future)
        waiting = self._waiting.setdefault(ledger, {})
        waiting[future] = after
        self.count += 1
        try:
            await future
        finally:
            timer.cancel()
            self.count -= 1
            del waiting[future]
            if not waiting and self._waiting.get(ledger) is waiting:
                del self._waiting[ledger]

    def heard(self, ledger: int, last_confirmed: int) -> None:
        """Wakes the polls that wait for an entry below or at `last_confirmed`."""
        waiting = self._waiting.get(ledger)
        if waiting is not None:
            for future, after in waiting.items():
                if last_confirmed > after:
                    _resolve(future)

    def close(self) -> None:
        """Ends all waits."""
        for waiting in self._waiting.values():
            for future in waiting:
                _resolve(future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
