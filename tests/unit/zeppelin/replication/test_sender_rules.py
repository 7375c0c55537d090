"""Whose turn it is, and what is kept for whom."""

import asyncio
import random
from typing import Any, cast
from unittest import mock

import pytest

from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.records import PartitionStore
from raftwood.zeppelin.replication import sender as sender_module
from raftwood.zeppelin.replication.sender import (
    FLIGHT_MS,
    WINDOW_BYTES,
    Feed,
    Rate,
    RecordSender,
    SenderRules,
)
from tests.kits.models import Mutant, Violation, replaced
from tests.kits.zeppelin.far_links import RECORD_BYTES, FarMaster

ONE, TWO, THREE = (PartitionId(1, number) for number in range(3))


def ack(rules: SenderRules, feed: Feed) -> None:
    """All that was sent."""
    rules.acked(feed, sequence=feed.next - 1, arrived=feed.next - 1, now_ms=0)


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
        rules.sent(feed, count=1, size=10, now_ms=0)
        if len(served) < 5:
            rules.grown(feed.partition, 100 if feed.partition == ONE else 1)
    assert served == [ONE, TWO, ONE, ONE, ONE]


def test_a_slave_that_does_not_ack_is_sent_no_more_than_its_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender_module, "WINDOW_BYTES", 100)
    rules = SenderRules()
    feed = rules.begin(ONE, session=1, first=1)
    while rules.grown(ONE, 1_000):
        assert rules.next() is feed
        rules.sent(feed, count=1, size=30, now_ms=0)
    assert (feed.next, feed.under_way_bytes) == (5, 120)
    assert feed.lag_bytes(14) == 120 + 10 * 30
    rules.acked(feed, sequence=2, arrived=2, now_ms=0)
    assert feed.under_way_bytes == 60
    assert rules.grown(ONE, 1_000)


def test_all_partitions_of_a_peer_share_one_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "PEER_WINDOW_BYTES", 50)
    rules = SenderRules()
    first = rules.begin(ONE, session=1, first=1)
    rules.begin(TWO, session=1, first=1)
    rules.grown(ONE, 9)
    rules.grown(TWO, 9)
    assert rules.next() is first
    rules.sent(first, count=1, size=50, now_ms=0)
    assert rules.next() is None
    rules.acked(first, sequence=1, arrived=1, now_ms=0)
    assert rules.next() is rules.feed(TWO, 1)


def test_a_new_session_ends_the_one_before_and_what_it_had_under_way() -> None:
    rules = SenderRules()
    old = rules.begin(ONE, session=1, first=1)
    rules.sent(old, count=3, size=30, now_ms=0)
    new = rules.begin(ONE, session=2, first=2)
    assert rules.feed(ONE, 1) is None
    assert rules.feed(ONE, 2) is new
    assert rules.needed(ONE) == 2
    rules.sent(new, count=5, size=50, now_ms=0)
    assert rules.needed(ONE) == 2, "the connection may lose what was sent"
    rules.acked(new, sequence=4, arrived=4, now_ms=0)
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
                    ack(rules, feeds[partition])
                    rules.grown(partition, last[partition])
                case _ if (feed := rules.next()) is not None:
                    count = min(7, last[feed.partition] - feed.next + 1)
                    rules.sent(feed, count=count, size=count << 16, now_ms=0)
                    rules.grown(feed.partition, last[feed.partition])
        for partition, feed in feeds.items():
            ack(rules, feed)
            rules.grown(partition, last[partition])
        while (feed := rules.next()) is not None:
            count = min(7, last[feed.partition] - feed.next + 1)
            rules.sent(feed, count=count, size=count << 16, now_ms=0)
            ack(rules, feed)
            rules.grown(feed.partition, last[feed.partition])
        assert {each: feed.next - 1 for each, feed in feeds.items()} == last, seed


class Store:
    """Of a partition with one large record."""

    last_sequence = 1

    async def records(self, *, first: int, bytes_max: int) -> list[bytes]:  # noqa: ARG002
        return [bytes(64 << 20)]


def test_a_partition_that_leaves_makes_room_for_one_that_waits() -> None:
    async def main() -> None:
        channel, store = mock.Mock(), Store()
        sender = RecordSender(channel, lambda _: cast("PartitionStore", store))
        for partition in (ONE, TWO):
            sender.begin(partition, session=1, first=1)
        await asyncio.sleep(0.01)
        assert channel.send.call_count == 1
        sender.end(ONE)
        async with asyncio.timeout(30):
            while channel.send.call_count == 1:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
        await sender.close()

    asyncio.run(main())


LINKS = [
    (1, 20 << 20),
    (20, 250_000),
    (120, 10 << 20),
    (300, 20 << 20),
    (300, 850_000),
    (500, 4 << 20),
]


def check_link(round_trip_ms: int, bytes_per_s: int, *, lump_ms: int = 10) -> None:
    """A link that could take less than is written is used in full, what is sent on it is not late,
    and it is known how long the rest takes: after a time in which little was written, too.
    """
    master = FarMaster(round_trip_ms=round_trip_ms, bytes_per_s=bytes_per_s, lump_ms=lump_ms)
    before, late_ms, ratios = 0, 0.0, list[float]()
    for step in range(3_000):
        master.last = master.feed.next + 500
        master.step()
        if step < 2_000:
            before = master.feed.has
            continue
        late_ms = max(late_ms, master.queued_ms)
        ratios.append(master.gap.drain_ms / master.drain_ms)
    if (master.feed.has - before) * RECORD_BYTES < 0.9 * 10 * bytes_per_s:
        raise Violation("the link is not used in full", master.feed.has - before)
    if late_ms > 1.5 * FLIGHT_MS:
        raise Violation("what is sent is late", late_ms)
    if not 0.5 < min(ratios) <= max(ratios) < 1.5:
        raise Violation("the time is wrong", min(ratios), max(ratios))
    master.run(60)
    for _ in range(150):
        master.last += 1
        master.run(0.2)
    # A burst after that.
    master.last += 100
    if master.gap.drain_ms > 2 * master.drain_ms:
        raise Violation("a slow writer makes a slow link", master.gap, master.drain_ms)


@pytest.mark.parametrize(("round_trip_ms", "bytes_per_s"), LINKS)
@pytest.mark.parametrize("lump_ms", [10, 150])
def test_a_link_is_used_in_full_and_what_is_sent_over_it_is_not_late(
    round_trip_ms: int, bytes_per_s: int, lump_ms: int
) -> None:
    check_link(round_trip_ms, bytes_per_s, lump_ms=lump_ms)


def sent_in_full(self: Rate, size: int, now_ms: int, *, is_full: bool) -> tuple[Any, ...]:  # noqa: ARG001
    return RATE_SENT(self, size, now_ms, is_full=True)


RATE_SENT = Rate.sent
MUTANTS = {
    "the window is of bytes alone": Mutant(
        lambda _: check_link(300, 850_000),
        replaced(SenderRules, flight_bytes=4 << 20),
        harm="late",
    ),
    "what a long link holds does not count": Mutant(
        lambda _: check_link(300, 20 << 20),
        replaced(Feed, window_bytes=WINDOW_BYTES),
        harm="not used in full",
    ),
    "a slow writer shows a slow link": Mutant(
        lambda _: check_link(300, 20 << 20),
        replaced(Rate, sent=sent_in_full),
        harm="slow writer",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=1)


def test_a_link_that_hardly_takes_anything_has_a_rate_nevertheless() -> None:
    rate = Rate()
    feed = Feed(PartitionId(1, 0), session=1, first=1, syncing=rate)
    for turn in range(4):
        feed.sent(count=1, size=10, now_ms=turn * 100_000)
        feed.acked(turn + 1, arrived=turn + 1, now_ms=(turn + 1) * 100_000)
    assert rate.bytes_per_s == 1
    feed.sent(count=1, size=10, now_ms=400_000)
    assert feed.gap(5).drain_ms == 10_000
