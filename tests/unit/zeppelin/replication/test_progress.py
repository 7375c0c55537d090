"""Which writes a master may call done."""

from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.replication.progress import Reached, SlaveProgress

A, B = NodeId("a"), NodeId("b")


def test_alone_a_master_counts_by_what_the_table_asks() -> None:
    own = Reached(30, 20, 10)
    for ack, done in (("memory", 30), ("written", 20), ("synced", 10)):
        progress = SlaveProgress(ack=ack, min_replicas=1, begins=1)  # type: ignore[arg-type]
        assert progress.done(own) == done


def test_as_many_slaves_as_are_asked_have_to_have_it() -> None:
    progress = SlaveProgress(ack="synced", min_replicas=2, begins=1)
    own = Reached(30, 30, 30)
    assert progress.done(own) == 0
    progress.acked(A, Reached(30, 30, 12), is_whole=True)
    assert progress.done(own) == 12
    progress.acked(B, Reached(30, 30, 25), is_whole=True)
    assert progress.done(own) == 25
    assert progress.done(Reached(30, 30, 20)) == 20
    assert (progress.count(12), progress.count(13), progress.count(26)) == (2, 1, 0)
    progress.lost(B)
    assert progress.done(own) == 12


def test_a_slave_that_repairs_does_not_count() -> None:
    progress = SlaveProgress(ack="synced", min_replicas=2, begins=1)
    progress.acked(A, Reached(30, 30, 30), is_whole=False)
    assert progress.done(Reached(30, 30, 30)) == 0


def test_nothing_is_done_before_the_first_record_of_the_epoch_is() -> None:
    progress = SlaveProgress(ack="synced", min_replicas=2, begins=10)
    own = Reached(10, 10, 10)
    progress.acked(A, Reached(9, 9, 9), is_whole=True)
    assert progress.done(own) == 0
    progress.acked(A, Reached(10, 10, 10), is_whole=True)
    assert progress.done(own) == 10


def test_the_same_master_keeps_what_it_knows_of_slaves_that_stay() -> None:
    before = SlaveProgress(ack="synced", min_replicas=2, begins=1)
    before.acked(A, Reached(9, 9, 9), is_whole=True)
    before.acked(B, Reached(5, 5, 5), is_whole=True)
    after = SlaveProgress(ack="synced", min_replicas=2, begins=9)
    after.take_over(before, [A])
    assert after.done(Reached(9, 9, 9)) == 9
    assert after.count(1) == 1
