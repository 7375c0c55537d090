"""Batch reads: both stored forms alike, projections, where to begin, unreadable batches."""

import json
from datetime import UTC, datetime

import pyarrow
import pytest

from raftwood.base.position import Position, position_from_bytes
from tests.kits.pipeline.kit import PROJECT, Hub


def test_both_stored_forms_are_read_alike(hub: Hub) -> None:
    logstore = hub.logstore(shards=1)
    time = datetime(2026, 11, 16, 9, 30, 0, 123456, tzinfo=UTC)
    ns = int(time.timestamp()) * 1_000_000_000 + 123_456_000
    with hub.client.producer(PROJECT, logstore) as producer:
        producer.send(
            {"n": "1", "text": "grüße"},
            time_ns=ns,
            topic="orders",
            source="web-1",
            tags={"zone": "a"},
        )
        producer.flush()
        table = pyarrow.table(
            {
                "__time__": pyarrow.array([ns], pyarrow.timestamp("ns")),
                "__topic__": ["orders"],
                "__source__": ["web-1"],
                "__tag__:zone": ["a"],
                "n": pyarrow.array([1], pyarrow.int64()),
                "text": ["grüße"],
                "absent": pyarrow.array([None], pyarrow.string()),
            }
        )
        producer.send_arrow(table)
    one, other = hub.read(logstore).orderBy("position").collect()
    for row in (one, other):
        found = row.asDict()
        position = found.pop("position")
        assert position_from_bytes(bytes(position)) > Position(0)
        assert found == {
            "time": time.replace(tzinfo=None),
            "topic": "orders",
            "source": "web-1",
            "tags": {"zone": "a"},
            "contents": {"n": "1", "text": "grüße"},
            "raw": None,
            "shard": 0,
            "index": 0,
        }


def test_a_schema_pulls_named_contents_in_their_types(hub: Hub) -> None:
    logstore = hub.logstore()
    hub.fill(logstore, range(100), topic="t")
    frame = hub.read(logstore, "text string, n int, topic string, `contents.n` double, none date")
    rows = frame.orderBy("n").collect()
    assert [tuple(row) for row in rows] == [
        (f"text {number}", number, "t", float(number), None) for number in range(100)
    ]


def test_a_batch_query_begins_and_ends_where_it_is_told(hub: Hub) -> None:
    logstore = hub.logstore(shards=1)
    for number in range(6):
        hub.fill(logstore, [number])
    positions = [
        position_from_bytes(bytes(row.position))
        for row in hub.read(logstore, "n int, position binary").orderBy("n").collect()
    ]
    options = {
        "startingOffsets": json.dumps({"0": str(positions[1])}),
        "endingOffsets": json.dumps({"0": int(positions[4])}),
        "minPartitions": 3,
    }
    frame = hub.read(logstore, "n int", options)
    assert frame.rdd.getNumPartitions() >= 3
    assert sorted(row.n for row in frame.collect()) == [1, 2, 3]
    assert hub.read(logstore, "n int", {"startingOffsets": "latest"}).count() == 0
    assert hub.read(logstore, "n int", {"startingTimestamp": 0}).count() == 6


def test_filters_are_pushed_down_where_it_is_asked_for(hub: Hub) -> None:
    logstore = hub.logstore(shards=2)
    hub.fill(logstore, range(50))
    plain = hub.read(logstore)
    pushed = hub.read(logstore, None, {"pushFilters": "true"})
    middle = plain.selectExpr("percentile_approx(time, 0.5) t").collect()[0].t
    for condition in (
        "shard = 1",
        "shard in (0, 7)",
        f"time >= timestamp'{middle}'",
        f"time < timestamp'{middle}' and shard = 0",
        "position > X'00000000000000000000000000000000'",
    ):
        expected = sorted(row.contents["n"] for row in plain.where(condition).collect())
        assert expected == sorted(row.contents["n"] for row in pushed.where(condition).collect())
    assert pushed.where("shard = 1").rdd.getNumPartitions() == 1


@pytest.fixture
def damaged(hub: Hub) -> str:
    logstore = hub.logstore(shards=1)
    hub.fill(logstore, [1])
    hub.put_raw(logstore, b"\xff\xff no LogGroup")
    hub.fill(logstore, [2])
    return logstore


def test_an_unreadable_batch_is_a_row_by_itself(hub: Hub, damaged: str) -> None:
    rows = hub.read(damaged, "n int, raw binary, shard int").collect()
    assert sorted(row.n for row in rows if row.n is not None) == [1, 2]
    (raw,) = [row.raw for row in rows if row.n is None]
    assert bytes(raw).endswith(b"\xff\xff no LogGroup")


def test_unreadable_batches_are_dropped_or_fail_the_query(hub: Hub, damaged: str) -> None:
    frame = hub.read(damaged, "n int", {"mode": "dropMalformed"})
    assert sorted(row.n for row in frame.collect()) == [1, 2]
    with pytest.raises(Exception, match="cannot be read"):
        hub.read(damaged, "n int", {"mode": "FAILFAST"}).collect()


def test_values_of_another_type_are_null_dropped_or_fail_the_query(hub: Hub) -> None:
    logstore = hub.logstore(shards=1)
    with hub.client.producer(PROJECT, logstore) as producer:
        producer.send_many([{"n": "1"}, {"n": "many"}, {"n": "3"}])
    assert [row.n for row in hub.read(logstore, "n int").collect()] == [1, None, 3]
    kept = hub.read(logstore, "n int", {"mode": "DROPMALFORMED"}).collect()
    assert [row.n for row in kept] == [1, 3]
    with pytest.raises(Exception, match="'many', which is no int32"):
        hub.read(logstore, "n int", {"mode": "FAILFAST"}).collect()


def test_headers_tell_of_the_stored_batch(hub: Hub) -> None:
    logstore = hub.logstore(shards=1)
    hub.fill(logstore, [1])
    (row,) = hub.read(logstore, None, {"includeHeaders": "true"}).collect()
    assert row.headers["format"] == "log_group"
    assert int(row.headers["received_ms"]) > 0


def test_an_unknown_option_is_named(hub: Hub) -> None:
    logstore = hub.logstore(shards=1)
    with pytest.raises(Exception, match="no option 'startingoffset'"):
        hub.read(logstore, None, {"startingOffset": "latest"}).count()
