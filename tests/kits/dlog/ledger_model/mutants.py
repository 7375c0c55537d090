"""Bugs planted in the rules on purpose: each must be caught, or the oracle proves nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from raftwood.dlog.ledgers.model import BookieId, LedgerConfig, LedgerMetadata
from raftwood.dlog.ledgers.rules import recovering
from raftwood.dlog.ledgers.rules.recovering import Fencing, Finding
from raftwood.dlog.ledgers.rules.writing import Pending, Writing
from tests.kits.dlog.ledger_model import actors
from tests.kits.dlog.ledger_model.actors import Recoverer, Writer
from tests.kits.dlog.ledgers.mutants import acks_while_changing, keeps_acks_of_the_replaced
from tests.kits.dlog.violations import Harm

Plant = Callable[[], AbstractContextManager[Any]]
_stored = Writing.stored
_fencing = Fencing.__init__


def _patched(owner: object, name: str, value: object) -> Plant:
    return lambda: mock.patch.object(owner, name, value)


def _always(self: Writing, entry: int, bookie: BookieId) -> bool:
    _stored(self, entry, bookie)
    return True


def _any_stored(self: Writing) -> Pending | None:
    for entry, pending in self.pending.items():
        if pending.acks.bit_count() >= self._ack_quorum and not self.is_changing:
            del self.pending[entry]
            self.last_confirmed = max(self.last_confirmed, entry)
            self.confirmed_bytes = max(self.confirmed_bytes, pending.length_bytes)
            return pending
    return None


def _one_ack_less(self: Writing, config: LedgerConfig, *arguments: Any, **options: Any) -> None:
    _writing(self, config, *arguments, **options)
    self._ack_quorum = max(1, config.ack_quorum - 1)


_writing = Writing.__init__


def _without_floor(self: Fencing, config: LedgerConfig, *, first: int) -> None:
    _fencing(self, config, first=first)
    self.last_confirmed = -1


def _tells_nobody(
    self: Writer, _first: int, _before: object, _after: object, then: Callable[[], None]
) -> None:
    self.world.later(self, then)


def _ignores_others(
    self: Writer,
    change: Callable[[LedgerMetadata], LedgerMetadata | None],
    then: Callable[[], None],
) -> None:
    """The compare-and-set is made, and its outcome not looked at."""
    wanted = change(self.metadata)
    if wanted is not None:
        self.world.send_compare_and_set(self, wanted, self.version, lambda *_: then())
        self.metadata, self.version = wanted, self.version + 1


def _silence_is_a_miss(self: Finding, place: int, entry: int) -> None:
    self.missing(place, entry)


def _closes_early(self: Recoverer) -> None:
    """What was found is not stored by an ack quorum yet."""
    if self.finding is not None and not self.is_dead:
        _go_on(self)
        if self.finding.is_ended and self.writing.pending and not self.is_closing:
            self.writing.last_confirmed = self.writing.next_entry - 1
            self.close()


_go_on = Recoverer.go_on

_RACE = {
    "quorums": (3, 3, 2),
    "slow": "all",
    "lost": 0,
    "lost_reads": 0.3,
    "faults": 0,
    "recoveries": 0.02,
    "appends": 0.05,
}
_CHANGES = {"quorums": (3, 3, 2), "spare_bookies": 2, "faults": 0.05, "recoveries": 0.02}


@dataclass(frozen=True)
class Planted:
    """A bug, what it must be seen to break, and the weather in which it shows sooner."""

    plant: Plant
    harm: Harm
    weather: dict[str, Any] = field(default_factory=dict)


MUTANTS = {
    "recovery reads without fencing": Planted(
        _patched(Recoverer, "reads_fence", False), Harm.CLOSED_BEFORE_ACKED, _RACE
    ),
    "a damaged entry is a missing one": Planted(
        _patched(Recoverer, "damage_is_silence", False),
        Harm.CLOSED_BEFORE_ACKED,
        {**_RACE, "faults": 0.05, "is_one_damaged": True},
    ),
    "silence is a miss": Planted(
        _patched(Finding, "unknown", _silence_is_a_miss), Harm.CLOSED_BEFORE_ACKED
    ),
    "an entry is absent after one miss": Planted(
        _patched(recovering, "misses_needed", lambda _: 1), Harm.CLOSED_BEFORE_ACKED
    ),
    "one fenced bookie is enough": Planted(
        _patched(recovering, "is_covered", lambda _, places: places != 0), Harm.UNFENCED_ACK
    ),
    "the last segment says nothing of what is confirmed": Planted(
        _patched(Fencing, "__init__", _without_floor), Harm.CLOSED_BEFORE_ACKED, _CHANGES
    ),
    "a recovery closes before its adds are acked": Planted(
        _patched(Recoverer, "go_on", _closes_early), Harm.TOO_FEW_COPIES
    ),
    "a recovery tells nobody of its ensembles": Planted(
        _patched(actors, "with_segment", lambda segments, _first, _bookies: segments),
        Harm.TOO_FEW_COPIES,
    ),
    "acks are out of order": Planted(
        lambda: mock.patch.multiple(Writing, next_acked=_any_stored, stored=_always),
        Harm.ACKS_OUT_OF_ORDER,
    ),
    "acks go on while the ensemble changes": Planted(
        lambda: mock.patch.multiple(Writing, next_acked=acks_while_changing, stored=_always),
        Harm.TOO_FEW_COPIES,
    ),
    "acks of replaced bookies count": Planted(
        _patched(Writing, "changed", keeps_acks_of_the_replaced), Harm.TOO_FEW_COPIES
    ),
    "one ack less is enough": Planted(
        _patched(Writing, "__init__", _one_ack_less), Harm.CLOSED_BEFORE_ACKED
    ),
    "a changed ensemble is told to nobody": Planted(
        _patched(Writer, "persist", _tells_nobody), Harm.CLOSED_BEFORE_ACKED
    ),
    "a lost compare-and-set is taken for done": Planted(
        _patched(Writer, "update", _ignores_others), Harm.CLOSED_BEFORE_ACKED, _CHANGES
    ),
}
