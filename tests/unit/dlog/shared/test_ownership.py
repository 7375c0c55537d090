"""Who owns a log: one rule after the other."""

import pytest

from raftwood.dlog import ownership as rules
from raftwood.dlog.ownership import Event, LogOwner, OwnerSeen, Ownership, OwnershipPhase

ME = LogOwner("me", "here:1", 7)
OTHER = LogOwner("other", "there:1", 8)


def _owning() -> Ownership:
    log = Ownership("me")
    log.step(rules.LeaseBegan(ME))
    assert log.step(rules.OwnerWanted()) == [rules.Claim(ME, 0)]
    assert log.step(rules.ClaimAnswered(5)) == [rules.OpenWriter(5)]
    assert log.step(rules.WriterOpened(5)) == []
    assert log.phase is OwnershipPhase.OWNING
    return log


def test_a_log_of_nobody_is_claimed_then_fenced_then_written() -> None:
    log = _owning()
    assert log.elsewhere is None
    # What the watch says of our own claim is no news.
    assert log.step(OwnerSeen(ME, 5, 5)) == []
    assert log.phase is OwnershipPhase.OWNING


def test_nobody_claims_a_log_that_another_owns() -> None:
    log = Ownership("me")
    log.step(rules.LeaseBegan(ME))
    log.step(OwnerSeen(OTHER, 3, 3))
    assert log.step(rules.OwnerWanted()) == []
    assert log.elsewhere == OTHER
    assert log.step(rules.OwnerGone(ME)) == []
    # Its process has ended: its lease is not waited for.
    log.step(rules.OwnerGone(OTHER))
    assert log.step(rules.OwnerWanted()) == [rules.Claim(ME, 3)]


@pytest.mark.parametrize(
    "event",
    [rules.LeaseEnded(), OwnerSeen(OTHER, 9, 9), OwnerSeen(None, 0, 9)],
    ids=["lease", "other", "removed"],
)
def test_an_owner_that_lost_its_record_or_lease_stops_at_once(event: Event) -> None:
    log = _owning()
    assert log.step(event)[0] == rules.StopWriter(5)
    assert log.phase is not OwnershipPhase.OWNING


def test_a_writer_that_failed_gives_the_log_back_and_rests() -> None:
    log = _owning()
    assert log.step(rules.WriterFailed(5)) == [rules.StopWriter(5), rules.RemoveRecord(5)]
    assert log.step(rules.OwnerWanted()) == []
    assert log.step(rules.RecordLeft(5, 6)) == [rules.Rest()]
    assert log.step(rules.Rested()) == [rules.Claim(ME, 0)]


def test_an_idle_log_is_closed_before_it_is_given_back() -> None:
    log = _owning()
    assert log.step(rules.GiveBack()) == [rules.CloseWriter(5)]
    assert log.step(rules.WriterClosed(5)) == [rules.RemoveRecord(5)]
    assert log.step(rules.RecordLeft(5, 6)) == []
    assert (log.phase, log.elsewhere) == (OwnershipPhase.AWAY, None)
