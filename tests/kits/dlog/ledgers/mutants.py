"""Bugs planted on purpose: each must be caught, or the checkers prove nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from raftwood.base.files import Buffer
from raftwood.dlog.errors import BadDigest, NoSuchEntry
from raftwood.dlog.ledgers import reader, recovery
from raftwood.dlog.ledgers.digests import ANY_ENTRY, EntryDigest, Unpacked
from raftwood.dlog.ledgers.model import BookieId, LedgerConfig
from raftwood.dlog.ledgers.rules import recovering
from raftwood.dlog.ledgers.rules.recovering import Fencing, Finding
from raftwood.dlog.ledgers.rules.writing import Pending, Writing
from raftwood.dlog.ledgers.writer import QuorumWriter
from tests.kits.dlog.ledgers.profile import Profile
from tests.kits.dlog.ledgers.world import run
from tests.kits.dlog.violations import Harm

Plant = Callable[[], AbstractContextManager[Any]]


def _patched(owner: object, name: str, value: object) -> Plant:
    return lambda: mock.patch.object(owner, name, value)


def _acks_whatever_is_stored(self: Writing) -> Pending | None:
    for entry, pending in self.pending.items():
        if pending.acks.bit_count() >= self._ack_quorum and not self.is_changing:
            del self.pending[entry]
            self.last_confirmed = max(self.last_confirmed, entry)
            self.confirmed_bytes = max(self.confirmed_bytes, pending.length_bytes)
            return pending
    return None


_stored = Writing.stored


def _stored_and_ackable(self: Writing, entry: int, bookie: BookieId) -> bool:
    _stored(self, entry, bookie)
    return True


_changed = Writing.changed


def keeps_acks_of_the_replaced(
    self: Writing, replaced: dict[int, BookieId], *, now_ms: float
) -> list[tuple[Pending, BookieId]]:
    acks = {entry: pending.acks for entry, pending in self.pending.items()}
    sends = _changed(self, replaced, now_ms=now_ms)
    for entry, pending in self.pending.items():
        pending.acks = acks[entry]
    return sends


_next_acked = Writing.next_acked


def acks_while_changing(self: Writing) -> Pending | None:
    is_changing, self.is_changing = self.is_changing, False
    try:
        return _next_acked(self)
    finally:
        self.is_changing = is_changing


class _DamagedIsMissing(EntryDigest):
    def unpack(self, packed: Buffer, *, entry: int = ANY_ENTRY) -> Unpacked:
        try:
            return super().unpack(packed, entry=entry)
        except BadDigest as error:
            raise NoSuchEntry(error.message) from error


class _AllIsConfirmed(EntryDigest):
    def unpack(self, packed: Buffer, *, entry: int = ANY_ENTRY) -> Unpacked:
        unpacked = super().unpack(packed, entry=entry)
        return unpacked._replace(last_confirmed=unpacked.entry)


async def _persists_nothing(self: QuorumWriter, **_: object) -> None:
    pass


_fencing = Fencing.__init__


def _without_floor(self: Fencing, config: LedgerConfig, *, first: int) -> None:
    _fencing(self, config, first=first)
    self.last_confirmed = -1


def _silence_is_a_miss(self: Finding, place: int, entry: int) -> None:
    self.missing(place, entry)


@dataclass(frozen=True)
class Mutant:
    """A bug, what it must be seen to break, and the weather and first seed that bring it about."""

    plant: Plant
    harm: Harm
    weather: dict[str, Any] = field(default_factory=dict)
    first: int = 0

    def run(self, seed: int) -> None:
        profile = replace(Profile.choose(seed), **self.weather)
        with self.plant():
            run(seed, profile)


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

MUTANTS: dict[str, Mutant] = {
    "an entry is absent after one miss": Mutant(
        _patched(recovering, "misses_needed", lambda _: 1), Harm.CLOSED_BEFORE_ACKED, _SLOW
    ),
    "silence is a miss": Mutant(
        _patched(Finding, "unknown", _silence_is_a_miss),
        Harm.CLOSED_BEFORE_ACKED,
        _RACE_AND_FAULTS,
        first=60,
    ),
    "a damaged entry is a missing one": Mutant(
        _patched(recovery, "EntryDigest", _DamagedIsMissing),
        Harm.CLOSED_BEFORE_ACKED,
        _DAMAGE,
        first=30,
    ),
    "the last segment says nothing of what is confirmed": Mutant(
        _patched(Fencing, "__init__", _without_floor),
        Harm.CLOSED_BEFORE_ACKED,
        _FAULTS,
        first=100,
    ),
    "acks are out of order": Mutant(
        lambda: mock.patch.multiple(
            Writing, next_acked=_acks_whatever_is_stored, stored=_stored_and_ackable
        ),
        Harm.ACKS_OUT_OF_ORDER,
        _SLOW,
    ),
    "acks of replaced bookies count": Mutant(
        _patched(Writing, "changed", keeps_acks_of_the_replaced),
        Harm.TOO_FEW_COPIES,
        _FAULTS,
        first=35,
    ),
    "acks go on while the ensemble changes": Mutant(
        lambda: mock.patch.multiple(
            Writing, next_acked=acks_while_changing, stored=_stored_and_ackable
        ),
        Harm.TOO_FEW_COPIES,
        _FAULTS,
        first=65,
    ),
    "a changed ensemble is told to nobody": Mutant(
        _patched(QuorumWriter, "_persist", _persists_nothing), Harm.TOO_FEW_COPIES, _FAULTS
    ),
    "readers take all entries for confirmed": Mutant(
        _patched(reader, "EntryDigest", _AllIsConfirmed),
        Harm.CLOSED_BEFORE_SEEN,
        _RACE,
        first=55,
    ),
}
