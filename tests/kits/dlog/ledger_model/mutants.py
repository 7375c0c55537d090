"""Bugs planted in the rules on purpose: each must be caught, or the oracle proves nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raftwood.dlog.ledgers.model import LedgerConfig, LedgerMetadata
from raftwood.dlog.ledgers.rules import recovering
from raftwood.dlog.ledgers.rules.recovering import Fencing, Finding
from raftwood.dlog.ledgers.rules.writing import Writing
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledger_model import actors
from tests.kits.dlog.ledger_model.actors import Recoverer, Writer
from tests.kits.dlog.ledger_model.world import run
from tests.kits.dlog.ledgers.mutants import (
    acks_whatever_is_stored,
    acks_while_changing,
    keeps_acks_of_the_replaced,
    silence_is_a_miss,
    stored_and_ackable,
    without_floor,
)
from tests.kits.models import Mutant, replaced

EVENTS = 20_000


def _one_ack_less(self: Writing, config: LedgerConfig, *arguments: Any, **options: Any) -> None:
    _writing(self, config, *arguments, **options)
    self._ack_quorum = max(1, config.ack_quorum - 1)


_writing = Writing.__init__


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


def _closes_early(self: Recoverer) -> None:
    """What was found is not stored by an ack quorum yet."""
    if self.finding is not None and not self.is_dead:
        _go_on(self)
        if self.finding.is_ended and self.writing.pending and not self.is_closing:
            self.writing.last_confirmed = self.writing.next_entry - 1
            self.close()


_go_on = Recoverer.go_on


_RACE: dict[str, Any] = {
    "quorums": (3, 3, 2),
    "slow": "all",
    "lost": 0,
    "lost_reads": 0.3,
    "faults": 0,
    "recoveries": 0.02,
    "appends": 0.05,
}
_DAMAGE: dict[str, Any] = {**_RACE, "faults": 0.05, "is_one_damaged": True}
_CHANGES: dict[str, Any] = {
    "quorums": (3, 3, 2),
    "spare_bookies": 2,
    "faults": 0.05,
    "recoveries": 0.02,
}
_in_any_weather = partial(run, events=EVENTS)
_in_races = partial(run, events=EVENTS, **_RACE)
_with_changes = partial(run, events=EVENTS, **_CHANGES)

MUTANTS = {
    "recovery reads without fencing": Mutant(
        _in_races, replaced(Recoverer, reads_fence=False), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "a damaged entry is a missing one": Mutant(
        partial(run, events=EVENTS, **_DAMAGE),
        replaced(Recoverer, damage_is_silence=False),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "silence is a miss": Mutant(
        _in_any_weather, replaced(Finding, unknown=silence_is_a_miss), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "an entry is absent after one miss": Mutant(
        _in_any_weather,
        replaced(recovering, misses_needed=lambda _: 1),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "one fenced bookie is enough": Mutant(
        _in_any_weather,
        replaced(recovering, is_covered=lambda _, places: places != 0),
        harm=Harm.UNFENCED_ACK,
    ),
    "the last segment says nothing of what is confirmed": Mutant(
        _with_changes,
        replaced(Fencing, __init__=without_floor),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=2,
    ),
    "a recovery closes before its adds are acked": Mutant(
        _in_any_weather,
        replaced(Recoverer, go_on=_closes_early),
        harm=Harm.TOO_FEW_COPIES,
        first=1,
    ),
    "a recovery tells nobody of its ensembles": Mutant(
        _in_any_weather,
        replaced(actors, with_segment=lambda segments, _first, _bookies: segments),
        harm=Harm.TOO_FEW_COPIES,
        first=1,
    ),
    "acks are out of order": Mutant(
        _in_any_weather,
        replaced(Writing, next_acked=acks_whatever_is_stored, stored=stored_and_ackable),
        harm=Harm.ACKS_OUT_OF_ORDER,
    ),
    "acks go on while the ensemble changes": Mutant(
        _in_any_weather,
        replaced(Writing, next_acked=acks_while_changing, stored=stored_and_ackable),
        harm=Harm.TOO_FEW_COPIES,
    ),
    "acks of replaced bookies count": Mutant(
        _in_any_weather,
        replaced(Writing, changed=keeps_acks_of_the_replaced),
        harm=Harm.TOO_FEW_COPIES,
    ),
    "one ack less is enough": Mutant(
        _in_any_weather, replaced(Writing, __init__=_one_ack_less), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "a changed ensemble is told to nobody": Mutant(
        _in_any_weather, replaced(Writer, persist=_tells_nobody), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "a lost compare-and-set is taken for done": Mutant(
        _with_changes, replaced(Writer, update=_ignores_others), harm=Harm.CLOSED_BEFORE_ACKED
    ),
}
