"""The rules of a log's writers under events in any order; planted bugs are found."""

import pytest
from msgspec.structs import replace

from raftwood.dlog.log.meta import LogMeta
from raftwood.dlog.log.rules import writer_rules
from raftwood.dlog.log.rules.events import Action
from raftwood.dlog.log.rules.writer_rules import Phase, WriterRules
from tests.kits.dlog.log_model import run
from tests.kits.dlog.violations import Harm, assert_caught

EVENTS = 3_000
SEEDS = 100


@pytest.mark.parametrize("share", range(4))
def test_the_rules_hold_whatever_happens_when(share: int) -> None:
    for seed in range(share * SEEDS // 4, (share + 1) * SEEDS // 4):
        assert run(seed, EVENTS).takeovers


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
        if self.phase is Phase.CLAIMING and version == self._version:
            self._is_checking = False
            self._proposed = None
            return self._begin_again(meta)
        return super()._checked(meta, version)


class GoesOnAfterAnotherWriter(WriterRules):
    """Does not look whose name is in the record."""

    def _checked(self, meta: LogMeta, version: int) -> list[Action]:
        mine = replace(meta, writer=self.writer)
        return super()._checked(mine, version)


@pytest.mark.parametrize(
    ("rules", "harm"),
    [
        (OpensAThird, Harm.OPEN_LEDGERS),
        (TakesAnyRebuild, Harm.UNKNOWN_PRODUCERS),
        (TakesALostAnswerForANo, Harm.LISTED_AND_DELETED),
        (GoesOnAfterAnotherWriter, Harm.OPEN_LEDGERS),
    ],
)
def test_a_planted_bug_in_the_rules_is_caught_by_what_it_breaks(
    rules: type[WriterRules], harm: Harm
) -> None:
    assert_caught(harm, lambda seed: run(seed, EVENTS, rules), range(SEEDS))


def test_one_ledger_fenced_in_place_of_two_leaves_one_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_rules, "FENCED", 1)
    assert_caught(Harm.OPEN_LEDGERS, lambda seed: run(seed, EVENTS), range(SEEDS))
