"""Whose turn it is, and what is kept for whom."""

import random

import pytest

from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.replication import sender_rules
from raftwood.zeppelin.replication.sender_rules import SenderRules

ONE, TWO, THREE = (PartitionId(1, number) for number in range(3))


def test_partitions_with_records_have_their_turns_one_after_the_other() -> None:
    rules = SenderRules()
    for partition in (ONE, TWO, THREE):
        rules.begin(partition, session=1, first=1)
    assert rules.grown(ONE, 100)
    assert not rules.grown(ONE, 101)
    assert rules.grown(TWO, 1)
    served = []
    while (feed := rules.next()) is not None:
        served.append(feed.partition)
        rules.sent(feed, count=1, size=10)
        if len(served) < 5:
            rules.grown(feed.partition, 100 if feed.partition == ONE else 1)
    assert served == [ONE, TWO, ONE, ONE, ONE]


def test_a_slave_that_does_not_ack_is_sent_no_more_than_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender_rules, "WINDOW_BYTES", 100)
    rules = SenderRules()
    feed = rules.begin(ONE, session=1, first=1)
    while rules.grown(ONE, 1_000):
        assert rules.next() is feed
        rules.sent(feed, count=1, size=30)
    assert (feed.next, feed.under_way_bytes) == (5, 120)
    assert feed.lag_bytes(14) == 120 + 10 * 30
    rules.acked(feed, sequence=2)
    assert feed.under_way_bytes == 60
    assert rules.grown(ONE, 1_000)


def test_all_partitions_of_a_peer_share_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_rules, "PEER_WINDOW_BYTES", 50)
    rules = SenderRules()
    first = rules.begin(ONE, session=1, first=1)
    rules.begin(TWO, session=1, first=1)
    rules.grown(ONE, 9)
    rules.grown(TWO, 9)
    assert rules.next() is first
    rules.sent(first, count=1, size=50)
    assert rules.next() is None
    rules.acked(first, sequence=1)
    assert rules.next() is rules.feed(TWO, 1)


def test_a_new_session_ends_the_one_before_and_what_it_had_under_way() -> None:
    rules = SenderRules()
    old = rules.begin(ONE, session=1, first=1)
    rules.sent(old, count=3, size=30)
    new = rules.begin(ONE, session=2, first=2)
    assert rules.feed(ONE, 1) is None
    assert rules.feed(ONE, 2) is new
    assert rules.needed(ONE) == 2
    rules.sent(new, count=5, size=50)
    assert rules.needed(ONE) == 2, "the connection may lose what was sent"
    rules.acked(new, sequence=4)
    assert rules.needed(ONE) == 5
    rules.end(ONE)
    assert rules.needed(ONE) is None
    assert len(rules) == 0


def test_whatever_happens_no_turn_is_lost_and_windows_hold() -> None:
    for seed in range(50):
        source = random.Random(seed)
        rules = SenderRules()
        last = dict.fromkeys((ONE, TWO, THREE), 0)
        feeds = {each: rules.begin(each, session=1, first=1) for each in last}
        for _ in range(300):
            partition = source.choice([*last])
            match source.randrange(3):
                case 0:
                    last[partition] += source.randrange(1, 20)
                    rules.grown(partition, last[partition])
                case 1:
                    rules.acked(feeds[partition], sequence=feeds[partition].next - 1)
                    rules.grown(partition, last[partition])
                case _ if (feed := rules.next()) is not None:
                    count = min(7, last[feed.partition] - feed.next + 1)
                    rules.sent(feed, count=count, size=count << 16)
                    rules.grown(feed.partition, last[feed.partition])
        for partition, feed in feeds.items():
            rules.acked(feed, sequence=feed.next - 1)
            rules.grown(partition, last[partition])
        while (feed := rules.next()) is not None:
            count = min(7, last[feed.partition] - feed.next + 1)
            rules.sent(feed, count=count, size=count << 16)
            rules.acked(feed, sequence=feed.next - 1)
            rules.grown(feed.partition, last[feed.partition])
        assert {each: feed.next - 1 for each, feed in feeds.items()} == last, seed
