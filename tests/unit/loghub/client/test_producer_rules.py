"""What a producer does next: one rule after the other."""

from typing import Any

import pytest

from raftwood.delivery.pump import NEVER
from raftwood.loghub.client.producer_rules import (
    AskForShards,
    ProducerLimits,
    ProducerRecord,
    ProducerRules,
    SendToShard,
    Settle,
)
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import even_ranges


def _shards(count: int, made: str = "first") -> list[Shard]:
    return [
        Shard(
            id=place,
            log=f"{made}-{place}",
            status=ShardStatus.READWRITE,
            begin=begin,
            end=end,
            created_s=0,
        )
        for place, (begin, end) in enumerate(even_ranges(count))
    ]


def _record(route: str | None, deadline: float = 1e9, shared: bytes = b"") -> ProducerRecord:
    return ProducerRecord(b"x" * 10, 10, route, shared, deadline)


class _Whole(ProducerRecord, gc=False, eq=False):
    is_whole = True


def _ready(count: int = 1, **limits: Any) -> ProducerRules:
    rules = ProducerRules(ProducerLimits(**limits))
    rules.learned(_shards(count), now=0.0)
    return rules


def _sends(rules: ProducerRules, now: float = 1.0) -> list[SendToShard]:
    return [each for each in rules.actions(now) if isinstance(each, SendToShard)]


def test_the_shards_are_asked_for_with_the_first_record_and_not_before() -> None:
    rules = ProducerRules(ProducerLimits())
    assert rules.actions(1.0) == []
    rules.add(_record(None))
    assert [type(each) for each in rules.actions(1.0)] == [AskForShards]
    assert rules.actions(1.0) == []
    rules.not_learned(now=1.0)
    assert rules.actions(1.0) == []
    assert 1.0 < rules.due < 1.1
    assert [type(each) for each in rules.actions(rules.due)] == [AskForShards]
    rules.learned(_shards(1), now=2.0)
    assert len(_sends(rules, 2.0)) == 1


def test_records_gather_while_a_batch_is_under_way() -> None:
    rules = _ready()
    rules.add(_record("0" * 32))
    (first,) = _sends(rules)
    for _ in range(5):
        rules.add(_record("0" * 32))
    assert _sends(rules) == []
    rules.stored(first.lane)
    (second,) = _sends(rules)
    assert (len(first.batch.records), len(second.batch.records)) == (1, 5)
    assert second.batch.sequence == first.batch.sequence + 1


def test_records_linger_only_where_that_is_wanted() -> None:
    rules = _ready(linger_s=0.5, delivery_timeout_s=10.0, batch_records_max=3)
    rules.add(_record("0" * 32, deadline=11.0))
    assert _sends(rules, 1.0) == []
    assert rules.due == 1.5
    rules.add(_record("0" * 32, deadline=11.2))
    assert len(_sends(rules, 1.5)[0].batch.records) == 2


def test_a_full_batch_does_not_linger() -> None:
    rules = _ready(linger_s=0.5, delivery_timeout_s=10.0, batch_records_max=3)
    for _ in range(4):
        rules.add(_record("0" * 32, deadline=11.0))
    assert len(_sends(rules, 1.0)[0].batch.records) == 3


def test_what_a_batch_has_once_parts_batches() -> None:
    rules = _ready()
    for shared in (b"a", b"a", b"b"):
        rules.add(_record("0" * 32, shared=shared))
    rules.add(_Whole(b"x", 1, "0" * 32, deadline=1e9))
    sizes = []
    for _ in range(3):
        (send,) = _sends(rules)
        sizes.append(len(send.batch.records))
        rules.stored(send.lane)
    assert sizes == [2, 1, 1]


def test_records_without_a_key_take_turns_by_batch() -> None:
    rules = _ready(3)
    taken = []
    for _ in range(4):
        for _ in range(2):
            rules.add(_record(None))
        (send,) = _sends(rules)
        assert len(send.batch.records) == 2
        taken.append(send.lane.shard)
        rules.stored(send.lane)
    assert taken == [0, 1, 2, 0]


def test_records_without_a_key_avoid_a_shard_that_does_not_answer() -> None:
    rules = _ready(2)
    rules.add(_record(None))
    (send,) = _sends(rules)
    rules.lost(send.lane, now=1.0)
    rules.add(_record(None))
    assert [each.lane.shard for each in _sends(rules, 1.001)] == [1 - send.lane.shard]


def test_a_lost_answer_is_asked_for_again_with_growing_pauses() -> None:
    rules = _ready()
    rules.add(_record("0" * 32))
    now, pauses = 1.0, []
    for _ in range(8):
        (send,) = _sends(rules, now)
        assert send.batch.sequence == 1
        rules.lost(send.lane, now=now)
        assert _sends(rules, now) == []
        pauses.append(rules.due - now)
        now = rules.due
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(pauses[-2])
    assert 0.5 <= pauses[-1] <= 1.0


def test_a_deleted_shard_leaves_in_doubt_only_what_was_in_doubt() -> None:
    rules = _ready()
    rules.add(_record("0" * 32))
    (send,) = _sends(rules)
    assert rules.gone(send.lane) is None
    rules = _ready()
    rules.add(_record("0" * 32))
    (send,) = _sends(rules)
    rules.lost(send.lane, now=1.0)
    _sends(rules, 2.0)
    batch = rules.gone(send.lane)
    assert batch is not None
    assert len(batch.records) == 1


def test_a_logstore_that_was_made_anew_takes_what_the_old_one_refused() -> None:
    rules = _ready()
    rules.add(_record("0" * 32))
    (send,) = _sends(rules)
    rules.readonly(send.lane)
    rules.learned(_shards(1, "second"), now=1.0)
    (again,) = _sends(rules)
    assert again.lane is not send.lane
    assert (again.lane.shard, again.batch.sequence) == (0, 2)


def test_at_the_end_what_was_sent_is_in_doubt_and_the_rest_is_not_stored() -> None:
    rules = _ready()
    rules.add(_record("0" * 32))
    (send,) = _sends(rules)
    send.batch.was_sent = True
    rules.add(_record("0" * 32))
    waiting, unknown = rules.abandon()
    assert (len(waiting), len(unknown)) == (1, 1)


def test_time_runs_out_for_records_that_wait_and_for_those_under_way() -> None:
    rules = _ready()
    rules.add(_record("0" * 32, deadline=5.0))
    (send,) = _sends(rules)
    rules.add(_record("0" * 32, deadline=6.0))
    assert rules.actions(4.0) == []
    assert rules.due == 5.0
    (settle,) = rules.actions(5.5)
    assert isinstance(settle, Settle)
    assert settle.is_unknown
    (settle,) = rules.actions(6.5)
    assert isinstance(settle, Settle)
    assert not settle.is_unknown
    rules.stored(send.lane)
    assert rules.actions(7.0) == []
    assert rules.due == NEVER
