"""Bugs planted in the rules of writers: each must be caught, or the model proves nothing."""

from functools import partial

from msgspec.structs import replace

from raftwood.dlog.log import writer_rules
from raftwood.dlog.log.meta import LogMeta
from raftwood.dlog.log.writer_rules import Action, WriterPhase, WriterRules
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.log_model.world import run
from tests.kits.models import Mutant, replaced

EVENTS = 3_000


class OpensAThird(WriterRules):
    """The next rotation does not wait until the ledger before is closed."""

    def _go_on(self) -> list[Action]:
        if self._ends is None:
            self.retiring = None
        return super()._go_on()


class TakesAnyRebuild(WriterRules):
    """Believes what an earlier attempt found out about producers."""

    def _write_if_ready(self) -> list[Action]:
        self._is_rebuilt = True
        return super()._write_if_ready()


class TakesALostAnswerForANo(WriterRules):
    """Deletes the new ledger where the answer was lost."""

    def _checked(self, meta: LogMeta, version: int) -> list[Action]:
        if self.phase is WriterPhase.CLAIMING and version == self._version:
            self._is_checking = False
            self._proposed = None
            return self._begin_again(meta)
        return super()._checked(meta, version)


class GoesOnAfterAnotherWriter(WriterRules):
    """Does not look whose name is in the record."""

    def _checked(self, meta: LogMeta, version: int) -> list[Action]:
        mine = replace(meta, writer=self.writer)
        return super()._checked(mine, version)


def _of(rules: type[WriterRules], harm: Harm) -> Mutant:
    return Mutant(partial(run, events=EVENTS, rules=rules), harm=harm)


MUTANTS = {
    "opens a third ledger": _of(OpensAThird, Harm.OPEN_LEDGERS),
    "takes any rebuild": _of(TakesAnyRebuild, Harm.UNKNOWN_PRODUCERS),
    "takes a lost answer for a no": _of(TakesALostAnswerForANo, Harm.LISTED_AND_DELETED),
    "goes on after another writer": _of(GoesOnAfterAnotherWriter, Harm.OPEN_LEDGERS),
    "fences one ledger in place of two": Mutant(
        partial(run, events=EVENTS), replaced(writer_rules, FENCED=1), harm=Harm.OPEN_LEDGERS
    ),
}
