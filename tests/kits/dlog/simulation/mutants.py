"""Bugs that could be in the log, each planted for one run; what is said of each says its harm."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace

from raftwood.base.position import Position
from raftwood.dlog.ledgers.seams import LedgerWriter
from raftwood.dlog.log import dlogs, log_writer, retention, writer_driver, writer_rules
from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.ledger_source import closed_info
from raftwood.dlog.log.meta import LedgerInfo, LogMeta
from raftwood.dlog.log.producers import DlogProducers
from raftwood.dlog.log.writer_rules import Action, Event, WriterPhase, WriterRules
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.simulation.world import Plan, run_dlog
from tests.kits.models import Mutant, replaced, together


class SetsBeforeItFences(WriterRules):
    """What the old writer stores between the two is unknown to the new one."""

    def step(self, event: Event) -> list[Action]:
        is_begin = self.phase is WriterPhase.READING and not self._is_checking
        if is_begin and isinstance(event, on.MetaRead) and event.meta:
            self.meta, self._version = event.meta, event.version
            return self._fenced()
        if isinstance(event, on.LedgerRecovered) and self.phase is WriterPhase.WRITING:
            return []
        actions = super().step(event)
        if any(isinstance(each, on.WriteToLedger) for each in actions) and self._is_new():
            ledgers = self._known().ledgers[-3:-1]
            actions = [*(on.RecoverLedger(each.ledger) for each in ledgers), *actions]
        return actions

    def _is_new(self) -> bool:
        is_new, self.attempts = self.attempts < 1000, 1000
        return is_new


async def _recover_without_a_fence(self: Any, ledger: int) -> Event:
    """Takes the ledgers for closed where they stand."""
    reader = await self._around.ledgers.open(ledger, recover=False)
    meta = self._meta()
    place = meta.place_of(ledger)
    info = await closed_info(reader, meta.ledgers[place])
    self._host.settled(info)
    return on.LedgerRecovered(info)


def _write_to_at_once(self: Any, ledger: LedgerWriter) -> None:
    """Acks out of order: the old ledger's last entries may be lost, and the new one's stored."""
    self._next = ledger
    for done in self._rotated:
        if not done.done():
            done.set_result(None)
    self._rotated.clear()
    self._switch()


def _known_is_nobody(
    self: Any, _producers: DlogProducers, *, last_ms: int, appended_bytes: int
) -> None:
    """A retry through the next writer is stored twice."""
    self._producers = DlogProducers()
    self.appended_bytes = appended_bytes
    self._last_ms = max(self._last_ms, last_ms)


async def _shrink_ledgers_first(
    self: Any, name: str, before: Callable[[LogMeta], Position]
) -> Position:
    """Where the compare-and-set then fails, the list has ledgers that are gone."""
    meta = (await self.metas.read(name)).meta
    _, freed = retention.shrunk(meta, before(meta), now_ms=self._around.now_ms())
    for info in freed:
        await self._ledgers.delete(info.ledger)
    changed = await self.change(
        name, lambda m: retention.shrunk(m, before(m), now_ms=self._around.now_ms())[0]
    )
    first: Position = changed.first
    return first


class WritesBeforeItIsInTheRecord(WriterRules):
    """What was acked is in a ledger that no list may ever have."""

    def step(self, event: Event) -> list[Action]:
        actions = super().step(event)
        if self.phase is WriterPhase.WRITING:
            for each in actions:
                if isinstance(each, on.SetMeta) and each.meta.last_ledger == self.spare:
                    return [*actions, on.WriteToLedger(each.meta.last_ledger)]
        if isinstance(event, on.MetaSet) and self.phase is WriterPhase.WRITING:
            if self.attempts == 1000:
                actions = [each for each in actions if not isinstance(each, on.WriteToLedger)]
            self.attempts = 1000
        return actions


def _switch_and_ack(self: Any) -> None:
    """Acks in the next ledger do not wait until the one before is closed."""
    _switch(self)
    self._closing = None


_switch = log_writer.LogWriter._switch


def _may_go_once_closed(self: LedgerInfo, *, now_ms: int, grace_ms: int) -> bool:  # noqa: ARG001
    """With the ledger goes its fence, and whoever slept is acked by bookies that know nothing."""
    return self.is_closed


class BelievesThatALostAnswerIsANo(WriterRules):
    """Deletes the new ledger, though the record may have it by now."""

    def _drop_spare(self, meta: LogMeta | None) -> list[Action]:  # noqa: ARG002
        spare, self.spare = self.spare, None
        return [] if spare is None else [on.DeleteLedger(spare)]

    def _checked(self, meta: LogMeta, version: int) -> list[Action]:
        self._is_checking = False
        self._proposed = None
        if self.phase is WriterPhase.CLAIMING:
            return self._begin_again(meta)
        if meta.writer != self.writer:
            return [*self._drop_spare(meta), *self._give_up("taken over")]
        self.meta, self._version = meta, version
        return [*self._drop_spare(meta), *self._go_on()]


SMALL = Plan(sessions=2, messages=12, lost=0.2, entries_max=2)
_ALIVE = Plan(writers=4, sessions=6, messages=12, lost=0, crashes=0, entries_max=2)
"""Nobody dies: an old writer goes on for as long as it is let."""
_LATE = replace(_ALIVE, entries_max=50, delay_ms=10)
_ALONE = replace(_ALIVE, writers=1, sessions=1, messages=150, entries_max=1, bookies=4, delay_ms=10)
_LOSSY = Plan(writers=3, sessions=2, messages=30, lost=0.5, crashes=0.5, entries_max=1)


MUTANTS = {
    "an old writer goes on in the ledger before the last": Mutant(
        partial(run_dlog, plan=_ALIVE), replaced(writer_rules, FENCED=1), harm=Harm.TWICE
    ),
    "sets before it fences": Mutant(
        partial(run_dlog, plan=_LATE),
        replaced(writer_driver, WriterRules=SetsBeforeItFences),
        harm=Harm.TWICE,
        first=5,
    ),
    "does not fence": Mutant(
        partial(run_dlog, plan=_ALIVE),
        replaced(writer_driver.WriterDriver, _recover=_recover_without_a_fence),
        harm=Harm.OPEN_LEDGERS,
    ),
    "writes to the next ledger at once": Mutant(
        partial(run_dlog, plan=_ALONE),
        replaced(log_writer.LogWriter, write_to=_write_to_at_once),
        harm=Harm.ACKS_OUT_OF_ORDER,
        first=1,
    ),
    "forgets the producers": Mutant(
        partial(run_dlog, plan=SMALL),
        replaced(log_writer.LogWriter, known_is=_known_is_nobody),
        harm=Harm.TWICE,
    ),
    "deletes before the record says so": Mutant(
        partial(run_dlog, plan=replace(SMALL, shrinks=True)),
        replaced(dlogs.Dlogs, _shrink=_shrink_ledgers_first),
        harm=Harm.LISTED_AND_DELETED,
    ),
    "writes before it is in the record": Mutant(
        partial(run_dlog, plan=SMALL),
        together(
            replaced(writer_driver, WriterRules=WritesBeforeItIsInTheRecord),
            replaced(log_writer.LogWriter, _switch=_switch_and_ack),
        ),
        harm=Harm.ACKED_OFF_THE_LIST,
        first=1,
    ),
    "deletes what was just fenced": Mutant(
        partial(run_dlog, plan=replace(SMALL, bookies=4, delay_ms=1)),
        replaced(LedgerInfo, may_go=_may_go_once_closed),
        harm=Harm.TWO_WRITERS,
    ),
    "believes that a lost answer is a no": Mutant(
        partial(run_dlog, plan=_LOSSY),
        replaced(writer_driver, WriterRules=BelievesThatALostAnswerIsANo),
        harm=Harm.LISTED_AND_DELETED,
        first=1,
    ),
}
