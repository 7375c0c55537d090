"""What is captured of a partition: one rule after the other."""

import pytest

from raftwood.base.errors import InvariantViolated
from raftwood.capture.events import Point
from raftwood.capture.rules import CaptureStep, PartitionRules, RecentKeys
from raftwood.zeppelin.client.binlogs import PartitionSlots
from raftwood.zeppelin.records import BinlogPosition, BinlogRecord, encode_record
from tests.kits.capture.world import FAMILY, TIME_NS, recent_of

SPLIT = (PartitionSlots(0, 0, 8_192), PartitionSlots(1, 8_192, 16_384, 0, BinlogPosition(1, 7)))


def test_records_that_do_not_follow_are_a_bug_of_ours() -> None:
    rules = PartitionRules(0, FAMILY, recent=recent_of())
    rules.begin(Point(epoch=2, sequence=3))
    for record in (BinlogRecord(2, 5, ()), BinlogRecord(1, 4, ())):
        with pytest.raises(InvariantViolated, match="does not follow"):
            rules.read([encode_record(record)], reached=9, time_ns=TIME_NS)


def test_how_far_a_partition_is_behind() -> None:
    rules = PartitionRules(0, FAMILY, recent=recent_of())
    rules.begin(None)
    rules.read([encode_record(BinlogRecord(1, 1, ()))], reached=9, time_ns=TIME_NS)
    assert rules.behind == 8


def test_keys_are_kept_within_a_bound() -> None:
    recent = RecentKeys(bytes_max=350)
    for sequence in range(1, 6):
        recent.add(sequence, b"k%d" % sequence)
    assert recent.floor == 2
    assert recent.behind(3) == [b"k5", b"k4"]
    assert recent.behind(1) is None
    recent.cut(4)
    assert recent.behind(2) == [b"k4", b"k3"]
    recent.add(5, None)
    assert recent.behind(4) is None
    recent.begin(9)
    assert (recent.behind(9), recent.behind(8)) == ([], None)


def test_what_was_split_off_begins_where_its_parent_was_split() -> None:
    parent, child = (PartitionRules(n, SPLIT, recent=recent_of()) for n in (0, 1))
    parent.begin(Point(epoch=1, sequence=4))
    assert not child.follow(parent, Point(epoch=1, sequence=6), time_ns=TIME_NS)
    assert not child.follow(parent, Point(epoch=1, sequence=7, index=1), time_ns=TIME_NS)
    assert child.step is CaptureStep.WAIT
    (chunk,) = child.follow(parent, Point(epoch=1, sequence=7), time_ns=TIME_NS)
    assert (child.step, chunk.point.position) == (CaptureStep.READ, BinlogPosition(1, 7))
    assert child.want.first == 8
    assert not child.follow(parent, Point(epoch=1, sequence=8), time_ns=TIME_NS)


def test_what_was_split_off_is_told_as_a_whole_where_its_parent_was_behind_the_split() -> None:
    parent, child = (PartitionRules(n, SPLIT, recent=recent_of()) for n in (0, 1))
    parent.begin(None)
    parent.snapshot_begun(range(10), time_ns=TIME_NS)
    assert parent.point is not None
    assert not child.follow(parent, parent.point, time_ns=TIME_NS)
    parent.snapshot_ended(BinlogPosition(2, 9), time_ns=TIME_NS)
    assert not child.follow(parent, parent.point, time_ns=TIME_NS)
    assert child.step is CaptureStep.SNAPSHOT
