"""The sink for tables without Spark: what a task writes is there once, however often it is run."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftwood.base.errors import InvalidConfiguration, InvalidInput, TooLarge
from raftwood.pipeline import zeppelin_sink
from raftwood.pipeline.zeppelin_options import (
    KvSinkOptions,
    connected_table,
    disconnect_tables,
    kv_sink_options,
)
from raftwood.pipeline.zeppelin_sink import (
    CHUNKS_PER_PRODUCER,
    RowLayout,
    TaskName,
    TaskRows,
    row_layout,
    write_rows,
)
from raftwood.zeppelin.client import Kv
from raftwood.zeppelin.client.bulk import NamedRows
from tests.kits.zeppelin.data_node import DataNode, data_node
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

SCHEMA = StructType(
    [StructField("k", StringType()), StructField("v", LongType()), StructField("s", LongType())]
)


@pytest.fixture(scope="module")
def node() -> Iterator[DataNode]:
    with data_node() as started:
        yield started


class Sink:
    """A task's, with some options."""

    writer = "query"

    def __init__(self, access: dict[str, str], **options: object) -> None:
        given = {name: str(each) for name, each in options.items()}
        self.options: KvSinkOptions = kv_sink_options({**access, **given})
        self.layout: RowLayout = row_layout(SCHEMA, self.options)

    @property
    def kv(self) -> Kv:
        return connected_table(self.options.access)

    def write(self, *batches: Any, batch: int = 0, partition: int = 0) -> int:
        name = TaskName(self.writer, batch, partition)
        return write_rows(self.options, self.layout, name, iter(batches)).rows


@pytest.fixture
def access(
    node: DataNode, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    # The node remembers what other tests wrote.
    monkeypatch.setattr(Sink, "writer", request.node.name)
    options = {"addresses": f"127.0.0.1:{node.port}", "user": WRITER, "password": PASSWORD}
    yield options
    Sink(options, keyColumn="k").kv.flush()
    disconnect_tables()


def numbered(numbers: Iterable[int], *, add: int = 0) -> Any:
    found = list(numbers)
    return pyarrow.record_batch(
        {
            "k": [f"k{number}" for number in found],
            "v": [number + add for number in found],
            "s": [None if number % 2 else 60 for number in found],
        }
    )


def test_rows_become_keys_and_values(access: dict[str, str]) -> None:
    sink = Sink(access, keyColumn="k", valueColumn="v", ttlColumn="s")
    assert sink.write(numbered(range(3)), numbered(range(3, 5)), numbered([])) == 5
    assert sink.kv.get_many(["k0", "k4"]) == [b"0", b"4"]
    assert sink.kv.ttl_ms("k1") == -1
    assert 59_000 < (sink.kv.ttl_ms("k2") or 0) <= 60_000
    sink = Sink(access, key="{{{k}}}:{v}", ttlSeconds=60)
    sink.write(numbered(range(2)), batch=1)
    assert sink.kv.get("{k1}:1") == b'{"k":"k1","v":1,"s":null}'
    assert (sink.kv.ttl_ms("{k1}:1") or 0) > 59_000
    assert sink.write(numbered([]), batch=2) == 0


def test_of_several_rows_with_one_key_the_last_one_counts(access: dict[str, str]) -> None:
    sink = Sink(access, keyColumn="k", valueColumn="v")
    sink.write(numbered(range(5)), numbered(range(3), add=100))
    assert sink.kv.get_many(["k0", "k2", "k3"]) == [b"100", b"102", b"3"]


def test_a_task_that_is_broken_off_and_run_again_writes_nothing_twice(
    access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(access, keyColumn="k", valueColumn="v", operation="increment", rowsPerRequest=10)
    whole = Kv.write_named

    def broken_off(kv: Kv, rows: Iterable[NamedRows], **options: Any) -> None:
        whole(kv, list(rows)[:3], **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Kv, "write_named", broken_off)
        with pytest.raises(KeyboardInterrupt):
            sink.write(numbered(range(1, 100)))
    assert sink.kv.size() == 30
    # It may come in another order, and in other batches.
    for order in (range(99, 0, -1), range(1, 100)):
        sink.write(numbered(list(order)[:40]), numbered(list(order)[40:]))
    expected = [b"%d" % number for number in range(1, 100)]
    assert sink.kv.get_many(f"k{number}" for number in range(1, 100)) == expected


def test_an_older_micro_batch_that_comes_again_does_not_undo_a_newer_one(
    access: dict[str, str],
) -> None:
    sink = Sink(access, keyColumn="k", valueColumn="v")
    for batch in (0, 1, 0):
        sink.write(numbered(range(50), add=1000 * batch), batch=batch)
    sink.kv.delete("k3")
    sink.write(numbered(range(50), add=1000), batch=1)
    assert sink.kv.get_many(["k0", "k3", "k49"]) == [b"1000", None, b"1049"]


def test_increments_of_several_tasks_and_micro_batches_add_up(access: dict[str, str]) -> None:
    sink = Sink(access, keyColumn="k", valueColumn="v", operation="increment")
    for batch in (0, 1):
        for partition in (0, 1):
            sink.write(numbered([5, 5, 6]), batch=batch, partition=partition)
    assert sink.kv.get_many(["k5", "k6"]) == [b"40", b"24"]


def test_a_transaction_names_a_batch_write(access: dict[str, str]) -> None:
    options = Sink(access, keyColumn="k", txnAppId="a", txnVersion=3).options
    assert options.transaction == ("txn-a", 3)
    with pytest.raises(InvalidConfiguration, match="go together"):
        Sink(access, keyColumn="k", txnAppId="a")


def test_chunks_have_names_of_their_own() -> None:
    name = TaskName("query", 2, 1)
    named = [name.of_chunk(place) for place in range(3 * CHUNKS_PER_PRODUCER)]
    assert len(set(named)) == len(named)
    assert len({producer for producer, _ in named}) == 3
    assert max(len(producer) for producer, _ in named) <= 64
    assert not set(named) & {TaskName("query", 3, 1).of_chunk(place) for place in range(200)}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "either .option"),
        ({"key": "a:{k}", "keyColumn": "k"}, "either .option"),
        ({"key": "plain"}, "name a column"),
        ({"key": "a:{k"}, "a brace of the key itself is doubled"),
        ({"key": "a:{nothing}"}, "no such column"),
        ({"keyColumn": "k", "valueColumn": "nothing"}, "no such column"),
        ({"keyColumn": "k", "ttlColumn": "nothing"}, "no such column"),
        ({"keyColumn": "k", "ttlSeconds": 5, "ttlColumn": "s"}, "give one"),
        ({"keyColumn": "k", "ttlSeconds": 0}, "from 1 on"),
        ({"keyColumn": "k", "operation": "nonsense"}, "set or increment"),
        ({"keyColumn": "k", "operation": "increment"}, "what is added"),
        ({"keyColumn": "k", "operation": "increment", "valueColumn": "k"}, "whole numbers"),
        ({"keyColumn": "k", "path": "web"}, "no path"),
        ({"keyColumn": "k", "nonsense": "1"}, "no option"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidConfiguration, match=why):
        Sink({"addresses": "127.0.0.1:1", "password": "p"}, **options)


def test_rows_that_cannot_be_written_are_said(
    access: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nulls = pyarrow.record_batch({"k": ["a", None], "v": [1, None], "s": [1, -1]})
    for options in (
        {"keyColumn": "k"},
        {"key": "{s}", "valueColumn": "v"},
        {"key": "{s}", "ttlColumn": "s"},
        {"key": "{s}", "valueColumn": "v", "operation": "increment"},
    ):
        with pytest.raises(InvalidInput):
            Sink(access, **options).write(nulls)
    large = pyarrow.record_batch(
        {"k": ["a", "b"], "v": ["x" * (9 << 20), "y" * (9 << 20)], "s": [1, 1]}
    )
    sink = Sink(access, keyColumn="k", valueColumn="v")
    with pytest.raises(TooLarge, match="fewer rows"):
        sink.write(large)
    monkeypatch.setattr(zeppelin_sink, "TASK_BYTES_MAX", 1 << 20)
    with pytest.raises(TooLarge, match="more tasks"):
        TaskRows(sink.layout).add(large)
