"""What a writer does where answers are lost and other things happen meanwhile."""

from msgspec.structs import replace

from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.meta import LEDGERS_MAX, LedgerInfo, LogMeta
from raftwood.dlog.log.writer_rules import Action, WriterRules

WRITER = b"w"


def writing(*ledgers: LedgerInfo) -> WriterRules:
    """One that has taken over a log with these ledgers, writes ledger 10000 and has no spare."""
    rules = WriterRules(WRITER)
    rules.step(on.WriterStarted())
    rules.step(on.MetaRead(LogMeta(token=b"t", ledgers=ledgers), 1))
    for each in ledgers[-2:]:
        rules.step(on.LedgerRecovered(each))
    rules.step(on.ProducersRebuilt(0))
    rules.step(on.LedgerCreated(10_000, 0))
    assert on.WriteToLedger(10_000) in rules.step(on.MetaSet(2))
    return rules


def record(actions: list[Action]) -> LogMeta:
    return next(each.meta for each in actions if isinstance(each, on.SetMeta))


def test_an_old_look_at_the_record_changes_nothing() -> None:
    rules = writing()
    before = rules.meta
    assert before is not None
    assert rules.step(on.ValidityEnded()) == [on.ReadMeta()]
    rules.step(on.RotationAsked())
    rotated = record(rules.step(on.LedgerCreated(10_001, 0)))
    rules.step(on.MetaSet(3))
    assert rules.step(on.MetaRead(before, 2)) == []
    assert rules.meta == rotated


def test_a_log_with_too_many_ledgers_rotates_once_it_was_shrunk() -> None:
    full = tuple(LedgerInfo(n, 0, is_closed=True, last_entry=0) for n in range(LEDGERS_MAX - 1))
    rules = writing(*full)
    assert rules.step(on.RotationAsked()) == []
    rules.step(on.ValidityEnded())
    assert rules.meta is not None
    shrunk = replace(rules.meta, ledgers=rules.meta.ledgers[5:])
    assert rules.step(on.MetaRead(shrunk, 3)) == [on.CreateLedger()]
