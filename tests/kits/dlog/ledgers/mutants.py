"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from functools import partial
from typing import Any

from raftwood.base.files import Buffer
from raftwood.dlog.bookie.ledger_descriptor import Limbo
from raftwood.dlog.errors import BadDigest, NoSuchEntry
from raftwood.dlog.ledgers import reader, recovery, repair, rules
from raftwood.dlog.ledgers.digests import ANY_ENTRY, EntryDigest, UnpackedEntry
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.ledgers.repair import RepairedLedger
from raftwood.dlog.ledgers.rules import (
    BookieShare,
    FenceRound,
    PendingAdd,
    PublishedWriteRules,
    RecoveryRound,
    WriteRules,
    with_holders,
)
from raftwood.dlog.ledgers.seams import VersionedMetadata
from raftwood.dlog.ledgers.writer import QuorumWriter
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledgers.world import run
from tests.kits.models import Mutant, replaced


def acks_whatever_is_stored(self: WriteRules) -> PendingAdd | None:
    for entry, pending in self.pending.items():
        if pending.acks.bit_count() >= self._ack_quorum and not self.is_changing:
            del self.pending[entry]
            self.last_confirmed = max(self.last_confirmed, entry)
            self.confirmed_bytes = max(self.confirmed_bytes, pending.length_bytes)
            return pending
    return None


_stored = WriteRules.stored


def stored_and_ackable(self: WriteRules, entry: int, bookie: BookieId) -> bool:
    _stored(self, entry, bookie)
    return True


_changed = WriteRules.changed


def keeps_acks_of_the_replaced(
    self: WriteRules, replaced: dict[int, BookieId], *, now_ms: float
) -> list[tuple[PendingAdd, BookieId]]:
    acks = {entry: pending.acks for entry, pending in self.pending.items()}
    sends = _changed(self, replaced, now_ms=now_ms)
    for entry, pending in self.pending.items():
        pending.acks = acks[entry]
    return sends


_next_acked = WriteRules.next_acked


def acks_while_changing(self: WriteRules) -> PendingAdd | None:
    is_changing, self.is_changing = self.is_changing, False
    try:
        return _next_acked(self)
    finally:
        self.is_changing = is_changing


class _DamagedIsMissing(EntryDigest):
    def unpack(self, packed: Buffer, *, entry: int = ANY_ENTRY) -> UnpackedEntry:
        try:
            return super().unpack(packed, entry=entry)
        except BadDigest as error:
            raise NoSuchEntry(error.message) from error


class _AllIsConfirmed(EntryDigest):
    def unpack(self, packed: Buffer, *, entry: int = ANY_ENTRY) -> UnpackedEntry:
        unpacked = super().unpack(packed, entry=entry)
        return unpacked._replace(last_confirmed=unpacked.entry)


async def _persists_nothing(self: QuorumWriter, **_: object) -> None:
    pass


_fencing = FenceRound.__init__


def without_floor(self: FenceRound, config: LedgerConfig, *, first: int) -> None:
    _fencing(self, config, first=first)
    self.last_confirmed = -1


def silence_is_a_miss(self: RecoveryRound, place: int, entry: int) -> None:
    self.missing(place, entry)


_shares = repair._Repair._shares


async def names_the_holder_first(
    self: Any, ledger: int, known: VersionedMetadata, shares: list[BookieShare]
) -> RepairedLedger:
    """A repair that dies then leaves a holder without entries, and nothing that tells of it."""
    found = known.metadata
    holders = {each.segment: self._holder(ledger, found.segments[each.segment]) for each in shares}
    self._holder = lambda _ledger, segment: holders[found.segments.index(segment)]
    others = {each: holder for each, holder in holders.items() if holder != self._bookie}
    await self._context.update(
        ledger,
        known,
        lambda metadata: with_holders(metadata, found=found, bookie=self._bookie, holders=others),
    )
    try:
        return await _shares(self, ledger, known, shares)
    finally:
        del self._holder


async def _copies_nothing(self: Any, share: BookieShare) -> None:
    pass


_SLOW: dict[str, Any] = {
    "quorums": (3, 3, 2),
    "stutters": 0.1,
    "stutter_ms": 100,
    "delay_ms_max": 5,
    "appends": 60,
    "is_corrupt": False,
    "recover_after_ms": 1_000,
    "writer_pause_ms": 20,
}
_FAULTS: dict[str, Any] = {
    **_SLOW,
    "faults": 20,
    "spare_bookies": 2,
    "stutters": 0.02,
    "recover_after_ms": 4_000,
}
_RACE: dict[str, Any] = {
    **_SLOW,
    "stutters": 0.5,
    "stutter_ms": 200,
    "burst": 1,
    "recover_after_ms": 600,
    "faults": 0,
}
_RACE_AND_FAULTS: dict[str, Any] = {**_RACE, "faults": 20, "spare_bookies": 0}
_DAMAGE: dict[str, Any] = {**_SLOW, "is_corrupt": True, "faults": 6}
_WIPES: dict[str, Any] = {**_SLOW, "faults": 6, "spare_bookies": 1, "wipes": 3}

MUTANTS = {
    "a bookie that began anew says that it has no such entry": Mutant(
        partial(run, **_WIPES),
        replaced(Limbo, doubt=lambda *_: None),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=166,
    ),
    "a repair names the new holder before it has the entries": Mutant(
        partial(run, **_WIPES),
        replaced(repair._Repair, _shares=names_the_holder_first),
        harm=Harm.TOO_FEW_COPIES,
        first=22,
    ),
    "a repair copies nothing": Mutant(
        partial(run, **_WIPES),
        replaced(repair._Copy, run=_copies_nothing),
        harm=Harm.TOO_FEW_COPIES,
        first=1,
    ),
    "an entry is absent after one miss": Mutant(
        partial(run, **_SLOW),
        replaced(rules, misses_needed=lambda _: 1),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=5,
    ),
    "silence is a miss": Mutant(
        partial(run, **_RACE_AND_FAULTS),
        replaced(RecoveryRound, unknown=silence_is_a_miss),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=92,
    ),
    "a damaged entry is a missing one": Mutant(
        partial(run, **_DAMAGE),
        replaced(recovery, EntryDigest=_DamagedIsMissing),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=8,
    ),
    "the last segment says nothing of what is confirmed": Mutant(
        partial(run, **_FAULTS),
        replaced(FenceRound, __init__=without_floor),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=58,
    ),
    "acks are out of order": Mutant(
        partial(run, **_SLOW),
        replaced(WriteRules, next_acked=acks_whatever_is_stored, stored=stored_and_ackable),
        harm=Harm.ACKS_OUT_OF_ORDER,
    ),
    "acks of replaced bookies count": Mutant(
        partial(run, **_FAULTS),
        replaced(WriteRules, changed=keeps_acks_of_the_replaced),
        harm=Harm.TOO_FEW_COPIES,
        first=26,
    ),
    "acks go on while the ensemble changes": Mutant(
        partial(run, **_FAULTS),
        replaced(WriteRules, next_acked=acks_while_changing, stored=stored_and_ackable),
        harm=Harm.TOO_FEW_COPIES,
        first=8,
    ),
    "a changed ensemble is told to nobody": Mutant(
        partial(run, **_FAULTS),
        replaced(QuorumWriter, _persist=_persists_nothing),
        harm=Harm.TOO_FEW_COPIES,
        first=6,
    ),
    "a reader asks one bookie": Mutant(
        partial(run, **_RACE),
        replaced(reader, is_covered=lambda _, places: places != 0),
        harm=Harm.ACKED_AND_UNSEEN,
        first=18,
    ),
    "an ack does not wait for readers": Mutant(
        partial(run, **_SLOW),
        replaced(PublishedWriteRules, next_acked=_next_acked),
        harm=Harm.ACKED_AND_UNSEEN,
    ),
    "readers take all entries for confirmed": Mutant(
        partial(run, **_RACE),
        replaced(reader, EntryDigest=_AllIsConfirmed),
        harm=Harm.CLOSED_BEFORE_SEEN,
    ),
}
