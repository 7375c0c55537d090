"""One process with a writer's rules: what it has under way, and what it was acked."""

import random
from collections.abc import Callable
from typing import Protocol

from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.meta import LedgerInfo, LogMeta
from raftwood.dlog.log.writer_rules import Action, Event, WriterPhase, WriterRules
from tests.kits.dlog.harms import Harm
from tests.kits.models import Violation


class ModelLedger:
    def __init__(self) -> None:
        self.stored: list[int] = []
        self.is_closed = False
        self.under_way: list[int] = []
        """Of its writer; a part of it may be stored by whoever recovers the ledger."""
        self.has_failed = False

    def info(self, number: int) -> LedgerInfo:
        return LedgerInfo(number, 0, is_closed=self.is_closed, last_entry=len(self.stored) - 1)


class Store(Protocol):
    """What all processes share."""

    rng: random.Random
    ledgers: dict[int, ModelLedger]
    meta: LogMeta
    version: int
    lost: float
    acked: dict[int, tuple[int, int]]

    def create(self) -> int: ...
    def later(self, action: on.SetMeta) -> None: ...
    def set(self, action: on.SetMeta) -> bool: ...


class Process:
    def __init__(self, store: Store, rules: Callable[[bytes], WriterRules], number: int) -> None:
        self.store = store
        self.rules = rules(b"%016d" % number)
        self.actions: list[Action] = []
        self.ledger: int | None = None
        self.next: int | None = None
        self.queue: list[int] = []
        self.known: tuple[int, ...] = ()
        """The ledgers whose producers it knows."""
        self.tell(on.WriterStarted())

    @property
    def is_over(self) -> bool:
        return self.rules.phase in (WriterPhase.GIVEN_UP, WriterPhase.ENDED) and not self.actions

    def tell(self, event: Event) -> None:
        for action in self.rules.step(event):
            if isinstance(action, on.WriteToLedger):
                self._check_known()
                self.next = action.ledger
                self._switch()
            elif not isinstance(action, on.GiveUp | on.EndWriter):
                self.actions.append(action)

    def _check_known(self) -> None:
        """Whoever begins to write knows what all ledgers before its own hold."""
        if self.ledger is None and self.next is None:
            listed = [info.ledger for info in self.store.meta.ledgers]
            before = [each for each in listed if self.store.ledgers[each].stored]
            own = self.rules.current
            if own in listed and not {each for each in before if each < own} <= {
                *(self.known or ())
            }:
                raise Violation(Harm.UNKNOWN_PRODUCERS, f"{before} before {own}: {self.known}")

    def _switch(self) -> None:
        old = None if self.ledger is None else self.store.ledgers[self.ledger]
        if self.next is not None and (old is None or not old.under_way):
            self.ledger, self.next = self.next, None

    def append(self, message: int) -> None:
        self.queue.append(message)

    def send(self) -> None:
        """What waits goes to the ledger that is written."""
        if (
            self.ledger is None
            or self.next is not None
            or self.rules.phase is not WriterPhase.WRITING
        ):
            return
        ledger = self.store.ledgers[self.ledger]
        if not ledger.has_failed and self.queue:
            ledger.under_way.append(self.queue.pop(0))

    def ack(self) -> None:
        """The first entry that is under way reaches the bookies."""
        if self.ledger is None or self.rules.phase is WriterPhase.GIVEN_UP:
            return
        ledger = self.store.ledgers[self.ledger]
        if not ledger.under_way or ledger.has_failed:
            return
        if ledger.is_closed:
            self.tell(on.LedgerFenced(self.ledger))
            return
        self._stored(self.ledger, ledger, ledger.under_way.pop(0))
        self._switch()

    def _stored(self, number: int, ledger: ModelLedger, message: int) -> None:
        ledger.stored.append(message)
        self.store.acked[message] = number, len(ledger.stored) - 1

    def fail(self) -> None:
        """Too few bookies are left for the ledger."""
        if self.ledger is not None and self.rules.phase is WriterPhase.WRITING:
            self.store.ledgers[self.ledger].has_failed = True
            self.tell(on.LedgerFailed(self.ledger))

    def act(self) -> None:
        """Any of the actions under way comes to its end."""
        rng = self.store.rng
        action = self.actions.pop(rng.randrange(len(self.actions)))
        event = self._do(action)
        if event is not None:
            self.tell(event)

    def _do(self, action: Action) -> Event | None:
        store = self.store
        match action:
            case on.ReadMeta():
                return on.MetaRead(store.meta, store.version)
            case on.SetMeta():
                return self._set(action)
            case on.RecoverLedger():
                return self._recover(action.ledger)
            case on.RebuildProducers():
                return self._rebuilt(action)
            case on.CreateLedger():
                if store.rng.random() < store.lost:
                    return on.CreationFailed()
                return on.LedgerCreated(store.create(), 0)
            case on.CloseLedger():
                return self._close(action)
            case on.DeleteLedger():
                if store.meta.place_of(action.ledger) is not None:
                    raise Violation(Harm.LISTED_AND_DELETED, f"ledger {action.ledger}")
                return None
            case on.PauseWriter():
                return on.PauseEnded()
        raise AssertionError(f"nobody knows how to do {action}")

    def _rebuilt(self, action: on.RebuildProducers) -> Event:
        if action.attempt == self.rules.attempts:
            self.known = tuple(info.ledger for info in action.ledgers)
        return on.ProducersRebuilt(action.attempt)

    def _set(self, action: on.SetMeta) -> Event:
        store = self.store
        if store.rng.random() < store.lost:
            if store.rng.random() < 0.5:
                store.later(action)
            else:
                store.set(action)
            return on.MetaNotSet()
        return on.MetaSet(store.version) if store.set(action) else on.MetaNotSet()

    def _recover(self, number: int) -> Event:
        store, ledger = self.store, self.store.ledgers[number]
        if store.rng.random() < store.lost:
            return on.RecoveryFailed(number)
        if not ledger.is_closed:
            ledger.is_closed = True
            kept = store.rng.randint(0, len(ledger.under_way))
            ledger.stored += ledger.under_way[:kept]
        if number == self.ledger and ledger.has_failed:
            self._settle(number, ledger)
        return on.LedgerRecovered(ledger.info(number))

    def _settle(self, number: int, ledger: ModelLedger) -> None:
        places = {message: place for place, message in enumerate(ledger.stored)}
        for message in ledger.under_way:
            if message in places:
                self.store.acked[message] = number, places[message]
        self.queue[:0] = [each for each in ledger.under_way if each not in places]
        ledger.under_way.clear()
        self._switch()

    def _close(self, action: on.CloseLedger) -> Event | None:
        ledger = self.store.ledgers[action.ledger]
        if ledger.has_failed:
            return on.LedgerFailed(action.ledger)
        if ledger.is_closed:
            return on.LedgerFenced(action.ledger)
        if ledger.under_way:
            self.actions.append(action)  # It waits for what is under way.
            return None
        ledger.is_closed = True
        return on.LedgerEnded(ledger.info(action.ledger))
