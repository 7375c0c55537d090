"""Bugs that could be in the log, each planted for one run; what is said of each says its harm."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from raftwood.base.position import Position
from raftwood.dlog.ledgers.ledger_store import LedgerWriter
from raftwood.dlog.log import dlogs, log_writer, writer_driver
from raftwood.dlog.log.meta import LedgerInfo, LogMeta
from raftwood.dlog.log.opening import closed_info
from raftwood.dlog.log.producers import Producers
from raftwood.dlog.log.rules import events as on
from raftwood.dlog.log.rules import freeing, writer_rules
from raftwood.dlog.log.rules.events import Action, Event
from raftwood.dlog.log.rules.writer_rules import Phase, WriterRules
from tests.kits.dlog.simulation.world import Plan
from tests.kits.dlog.violations import Harm

Mutant = Callable[[pytest.MonkeyPatch], None]


def fences_one_ledger(patch: pytest.MonkeyPatch) -> None:
    """An old writer in the middle of a rotation goes on in the ledger before the last."""
    patch.setattr(writer_rules, "FENCED", 1)


def sets_before_it_fences(patch: pytest.MonkeyPatch) -> None:
    """What the old writer stores between the two is unknown to the new one."""

    class Mutated(WriterRules):
        def step(self, event: Event) -> list[Action]:
            is_begin = self.phase is Phase.READING and not self._is_checking
            if is_begin and isinstance(event, on.MetaRead) and event.meta:
                self.meta, self._version = event.meta, event.version
                return self._fenced()
            if isinstance(event, on.LedgerRecovered) and self.phase is Phase.WRITING:
                return []
            actions = super().step(event)
            if any(isinstance(each, on.Write) for each in actions) and self._is_new():
                ledgers = self._known().ledgers[-3:-1]
                actions = [*(on.RecoverLedger(each.ledger) for each in ledgers), *actions]
            return actions

        def _is_new(self) -> bool:
            is_new, self.attempts = self.attempts < 1000, 1000
            return is_new

    patch.setattr(writer_driver, "WriterRules", Mutated)


def does_not_fence(patch: pytest.MonkeyPatch) -> None:
    """Takes the ledgers for closed where they stand."""

    async def recover(self: Any, ledger: int) -> Event:
        reader = await self._around.ledgers.open(ledger, recover=False)
        meta = self._meta()
        place = meta.place_of(ledger)
        info = await closed_info(reader, meta.ledgers[place])
        self._host.settled(info)
        return on.LedgerRecovered(info)

    patch.setattr(writer_driver.WriterDriver, "_recover", recover)


def writes_to_the_next_ledger_at_once(patch: pytest.MonkeyPatch) -> None:
    """Acks out of order: the old ledger's last entries may be lost, and the new one's stored."""

    def write_to(self: Any, ledger: LedgerWriter) -> None:
        self._next = ledger
        for done in self._rotated:
            if not done.done():
                done.set_result(None)
        self._rotated.clear()
        self._switch()

    patch.setattr(log_writer.LogWriter, "write_to", write_to)


def forgets_the_producers(patch: pytest.MonkeyPatch) -> None:
    """A retry through the next writer is stored twice."""

    def known_is(self: Any, producers: Producers, *, last_ms: int, appended_bytes: int) -> None:
        del producers
        self._producers = Producers()
        self.appended_bytes = appended_bytes
        self._last_ms = max(self._last_ms, last_ms)

    patch.setattr(log_writer.LogWriter, "known_is", known_is)


def deletes_before_the_record_says_so(patch: pytest.MonkeyPatch) -> None:
    """Where the compare-and-set then fails, the list has ledgers that are gone."""

    async def shrink(self: Any, name: str, before: Callable[[LogMeta], Position]) -> Position:
        meta = (await self.metas.read(name)).meta
        _, freed = freeing.shrunk(meta, before(meta), now_ms=self._around.now_ms())
        for info in freed:
            await self._ledgers.delete(info.ledger)
        changed = await self.change(
            name, lambda m: freeing.shrunk(m, before(m), now_ms=self._around.now_ms())[0]
        )
        first: Position = changed.first
        return first

    patch.setattr(dlogs.Dlogs, "_shrink", shrink)


def writes_before_it_is_in_the_record(patch: pytest.MonkeyPatch) -> None:
    """What was acked is in a ledger that no list may ever have."""

    class Mutated(WriterRules):
        def step(self, event: Event) -> list[Action]:
            actions = super().step(event)
            if self.phase is Phase.WRITING:
                for each in actions:
                    if isinstance(each, on.SetMeta) and each.meta.last_ledger == self.spare:
                        return [*actions, on.Write(each.meta.last_ledger)]
            if isinstance(event, on.MetaSet) and self.phase is Phase.WRITING:
                if self.attempts == 1000:
                    actions = [each for each in actions if not isinstance(each, on.Write)]
                self.attempts = 1000
            return actions

    patch.setattr(writer_driver, "WriterRules", Mutated)


def deletes_what_was_just_fenced(patch: pytest.MonkeyPatch) -> None:
    """With the ledger goes its fence, and whoever slept is acked by bookies that know nothing."""

    def may_go(self: LedgerInfo, *, now_ms: int, grace_ms: int) -> bool:  # noqa: ARG001
        return self.is_closed

    patch.setattr(LedgerInfo, "may_go", may_go)


def believes_that_a_lost_answer_is_a_no(patch: pytest.MonkeyPatch) -> None:
    """Deletes the new ledger, though the record may have it by now."""

    class Mutated(WriterRules):
        def _drop_spare(self, meta: LogMeta | None) -> list[Action]:  # noqa: ARG002
            spare, self.spare = self.spare, None
            return [] if spare is None else [on.DeleteLedger(spare)]

        def _checked(self, meta: LogMeta, version: int) -> list[Action]:
            self._is_checking = False
            self._proposed = None
            if self.phase is Phase.CLAIMING:
                return self._begin_again(meta)
            if meta.writer != self.writer:
                return [*self._drop_spare(meta), *self._give_up("taken over")]
            self.meta, self._version = meta, version
            return [*self._drop_spare(meta), *self._go_on()]

    patch.setattr(writer_driver, "WriterRules", Mutated)


SMALL = Plan(sessions=2, messages=12, lost=0.2, entries_max=2)
_ALIVE = Plan(writers=4, sessions=6, messages=12, lost=0, crashes=0, entries_max=2)
"""Nobody dies: an old writer goes on for as long as it is let."""


class Planted(NamedTuple):
    """A bug, what it must be seen to break, and the plan and the first seed that bring it about."""

    plant: Mutant
    harm: Harm
    plan: Plan = SMALL
    first: int = 0


MUTANTS = [
    Planted(fences_one_ledger, Harm.TWICE, _ALIVE),
    Planted(
        sets_before_it_fences, Harm.TWICE, replace(_ALIVE, entries_max=50, delay_ms=10), first=5
    ),
    Planted(does_not_fence, Harm.ACKED_OFF_THE_LIST, _ALIVE),
    Planted(
        writes_to_the_next_ledger_at_once,
        Harm.ACKS_OUT_OF_ORDER,
        replace(_ALIVE, writers=1, sessions=1, messages=150, entries_max=1, bookies=4, delay_ms=10),
        first=1,
    ),
    Planted(forgets_the_producers, Harm.TWICE),
    Planted(
        deletes_before_the_record_says_so, Harm.LISTED_AND_DELETED, replace(SMALL, shrinks=True)
    ),
    Planted(writes_before_it_is_in_the_record, Harm.ACKED_OFF_THE_LIST),
    Planted(deletes_what_was_just_fenced, Harm.TWO_WRITERS, replace(SMALL, bookies=4, delay_ms=1)),
    Planted(
        believes_that_a_lost_answer_is_a_no,
        Harm.LISTED_AND_DELETED,
        Plan(writers=3, sessions=2, messages=30, lost=0.5, crashes=0.5, entries_max=1),
        first=1,
    ),
]
