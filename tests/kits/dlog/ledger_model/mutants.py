"""Bugs planted in the rules on purpose: each must be caught, or the oracle proves nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raftwood.dlog.bookie.ledger_descriptor import Limbo
from raftwood.dlog.ledgers import rules
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig, LedgerMetadata, LedgerState
from raftwood.dlog.ledgers.rules import (
    FenceRound,
    PendingAdd,
    PublishedWriteRules,
    RecoveryRound,
    WriteRules,
)
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledger_model import actors
from tests.kits.dlog.ledger_model.actors import Recoverer, Writer
from tests.kits.dlog.ledger_model.oracle import Oracle
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


def _one_ack_less(self: WriteRules, config: LedgerConfig, *arguments: Any, **options: Any) -> None:
    _writing(self, config, *arguments, **options)
    self._ack_quorum = max(1, config.ack_quorum - 1)


_writing = WriteRules.__init__


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


def _waits_for_nobody(self: PublishedWriteRules) -> PendingAdd | None:
    return _next_confirmed(self)


_next_confirmed = WriteRules.next_acked


def _one_is_enough(self: PublishedWriteRules, bookie: BookieId, last_confirmed: int) -> bool:
    _heard(self, bookie, last_confirmed)
    self.seen = max(self.seen, last_confirmed)
    return bool(self.unseen)


_heard = PublishedWriteRules.heard


def _believes_in_copies(self: Oracle, metadata: LedgerMetadata) -> None:
    """A reader that takes what an ack quorum has for confirmed, though nobody has counted it."""
    config = metadata.config
    while metadata.state is LedgerState.OPEN:
        entry = self.seen + 1
        bookies = metadata.segment_of(entry).bookies
        holders = [self._bookies[bookies[place]] for place in config.places(entry)]
        if sum(entry in each.entries for each in holders) < config.ack_quorum:
            break
        self.seen = entry


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
_WIPED: dict[str, Any] = {
    **_RACE,
    "faults": 0.05,
    "is_one_wiped": True,
    "is_one_damaged": False,
}
_in_any_weather = partial(run, events=EVENTS)
_in_races = partial(run, events=EVENTS, **_RACE)
_with_changes = partial(run, events=EVENTS, **_CHANGES)

MUTANTS = {
    "recovery reads without fencing": Mutant(
        _in_races,
        replaced(Recoverer, reads_fence=False),
        harm=Harm.CLOSED_BEFORE_ACKED,
        first=35,
    ),
    "a damaged entry is a missing one": Mutant(
        partial(run, events=EVENTS, **_DAMAGE),
        replaced(Recoverer, damage_is_silence=False),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "a bookie that began anew says that it has no such entry": Mutant(
        partial(run, events=EVENTS, **_WIPED),
        replaced(Limbo, doubt=lambda *_: None),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "a bookie that began anew takes entries of a writer that it had fenced": Mutant(
        partial(run, events=EVENTS, **_WIPED),
        replaced(Limbo, refusal_of_add=lambda *_, **__: None),
        harm=Harm.UNFENCED_ACK,
        first=23,
    ),
    "silence is a miss": Mutant(
        _in_any_weather,
        replaced(RecoveryRound, unknown=silence_is_a_miss),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "an entry is absent after one miss": Mutant(
        _in_any_weather,
        replaced(rules, misses_needed=lambda _: 1),
        harm=Harm.CLOSED_BEFORE_ACKED,
    ),
    "one fenced bookie is enough": Mutant(
        _in_any_weather,
        replaced(rules, is_covered=lambda _, places: places != 0),
        harm=Harm.UNFENCED_ACK,
    ),
    "the last segment says nothing of what is confirmed": Mutant(
        _with_changes,
        replaced(FenceRound, __init__=without_floor),
        harm=Harm.CLOSED_BEFORE_ACKED,
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
        replaced(WriteRules, next_acked=acks_whatever_is_stored, stored=stored_and_ackable),
        harm=Harm.ACKS_OUT_OF_ORDER,
    ),
    "acks go on while the ensemble changes": Mutant(
        _in_any_weather,
        replaced(WriteRules, next_acked=acks_while_changing, stored=stored_and_ackable),
        harm=Harm.TOO_FEW_COPIES,
    ),
    "acks of replaced bookies count": Mutant(
        _in_any_weather,
        replaced(WriteRules, changed=keeps_acks_of_the_replaced),
        harm=Harm.TOO_FEW_COPIES,
    ),
    "one ack less is enough": Mutant(
        _in_any_weather, replaced(WriteRules, __init__=_one_ack_less), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "an ack does not wait for readers": Mutant(
        _in_any_weather,
        replaced(PublishedWriteRules, next_acked=_waits_for_nobody),
        harm=Harm.ACKED_AND_UNSEEN,
    ),
    "one bookie that was told is enough": Mutant(
        _in_any_weather,
        replaced(PublishedWriteRules, heard=_one_is_enough),
        harm=Harm.ACKED_AND_UNSEEN,
    ),
    "readers believe in copies that the writer has not counted": Mutant(
        _with_changes,
        replaced(Oracle, check_seen=_believes_in_copies),
        harm=Harm.CLOSED_BEFORE_SEEN,
    ),
    "a changed ensemble is told to nobody": Mutant(
        _in_any_weather, replaced(Writer, persist=_tells_nobody), harm=Harm.CLOSED_BEFORE_ACKED
    ),
    "a lost compare-and-set is taken for done": Mutant(
        _with_changes, replaced(Writer, update=_ignores_others), harm=Harm.ACKED_AND_UNSEEN
    ),
}
