"""The source for tables without Spark: what tasks read is the table as it was at planning."""

import datetime
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, StringStartsWith
from pyspark.sql.types import LongType, StringType, StructField, StructType

from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound
from raftwood.pipeline.data_source import ZeppelinDataSource
from raftwood.pipeline.zeppelin_options import connected_table, disconnect_tables
from raftwood.pipeline.zeppelin_source import FilteringTableReader, TableReader, table_schema
from raftwood.zeppelin.client import Kv
from tests.kits.zeppelin.data_node import DataNode, data_node
from tests.kits.zeppelin.static_view import PASSWORD, READER, WRITER

TEXTS = StructType([StructField("value", StringType()), StructField("key", StringType())])
KEYS = [f"key{number}" for number in range(300)]


@pytest.fixture
def node() -> Iterator[DataNode]:
    with data_node() as started:
        yield started
        disconnect_tables()


@pytest.fixture
def kv(node: DataNode) -> Iterator[Kv]:
    with Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password=PASSWORD) as client:
        client.set_many((key, f"of {key}") for key in KEYS)
        yield client


def reader_of(node: DataNode, schema: StructType | None = None, **options: object) -> TableReader:
    given = {name: str(each) for name, each in options.items()}
    access = {"addresses": f"127.0.0.1:{node.port}", "user": READER, "password": PASSWORD}
    made = ZeppelinDataSource({**access, **given}).reader(schema or table_schema())
    assert isinstance(made, TableReader)
    return made


def rows(reader: TableReader, partitions: Any = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in reader.partitions() if partitions is None else partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(each))):
            assert isinstance(batch, pyarrow.RecordBatch)
            found += batch.to_pylist()
    return found


def test_tasks_read_the_table_as_it_was_at_planning_however_often(node: DataNode, kv: Kv) -> None:
    kv.set("ends", "soon", px=3_600_000)
    reader = reader_of(node, pageBytes=500)
    partitions = reader.partitions()
    assert len(partitions) == 4
    kv.flush()
    first = rows(reader, partitions)
    assert sorted(row["key"] for row in first) == sorted([*map(str.encode, KEYS), b"ends"])
    assert rows(reader, partitions) == first
    by_key = {row["key"]: row for row in first}
    assert by_key[b"key7"] == {"key": b"key7", "value": b"of key7", "expires": None}
    left = by_key[b"ends"]["expires"] - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(minutes=59) < left < datetime.timedelta(minutes=61)


def test_texts_tags_and_prefixes_are_read_where_they_are_asked_for(node: DataNode, kv: Kv) -> None:
    kv.set_many({"{a}1": "1", "{a}2": "2", "{b}1": "3"})
    tagged = reader_of(node, TEXTS, tag="a")
    assert len(tagged.partitions()) == 1
    assert rows(tagged) == [{"value": "1", "key": "{a}1"}, {"value": "2", "key": "{a}2"}]
    assert {row["key"] for row in rows(reader_of(node, TEXTS, prefix="key29"))} == {
        "key29",
        *(f"key29{number}" for number in range(10)),
    }
    kv.set("key29x", b"\xff")
    with pytest.raises(InvalidInput, match="'value' has bytes that are no UTF-8"):
        rows(reader_of(node, TEXTS, prefix="key29x"))


def test_filters_on_the_key_are_taken_over(node: DataNode, kv: Kv) -> None:
    kv.set("other", "1")
    reader = reader_of(node, TEXTS, pushFilters="true")
    assert isinstance(reader, FilteringTableReader)
    begins, more = StringStartsWith(("key",), "key1"), GreaterThan(("value",), "x")
    assert reader.pushFilters(
        [begins, more, IsNotNull(("key",)), StringStartsWith(("key",), "key")]
    ) == [more]
    assert len(rows(reader)) == 111
    one = reader_of(node, TEXTS, pushFilters="true")
    assert isinstance(one, FilteringTableReader)
    equal = EqualTo(("key",), "key1")
    assert one.pushFilters([equal]) == [equal]
    assert len(one.partitions()) == 1
    assert "key1" in {row["key"] for row in rows(one)}


def test_checkpoints_end_when_they_are_read_if_that_is_asked_for(node: DataNode, kv: Kv) -> None:
    reader = reader_of(node, release="read")
    partitions = reader.partitions()
    assert len(node.view.copied.folders) == 4
    assert len(rows(reader, partitions)) == len(KEYS)
    assert node.view.copied.folders == {}
    with pytest.raises(NotFound, match="Run the query again"):
        rows(reader, partitions)
    assert kv.size() == len(KEYS)


def test_a_task_keeps_the_checkpoints_of_those_that_wait(node: DataNode, kv: Kv) -> None:
    reader = reader_of(node, checkpointTtlSeconds=1)
    partitions = reader.partitions()
    client = connected_table(reader.options.access)
    group, nodes = partitions[0].group, partitions[0].nodes  # type: ignore[attr-defined]
    assert client.renew_checkpoints(group, nodes) == 4
    assert kv.renew_checkpoints("another", nodes) == 0
    assert kv.end_checkpoints(group, nodes) == 4
    assert node.view.copied.folders == {}


def test_what_cannot_be_read_is_said_before_anything_is(node: DataNode) -> None:
    number = StructType([StructField("value", LongType())])
    with pytest.raises(InvalidInput, match="'value' is binary or string, not bigint"):
        reader_of(node, number)
    other = StructType([StructField("name", StringType())])
    with pytest.raises(InvalidInput, match="no column 'name'"):
        reader_of(node, other)
    for option, match in (
        ({"release": "never"}, "give ttl or read"),
        ({"path": "x"}, "no path"),
        ({"keyColumn": "x"}, "no option 'keycolumn'"),
    ):
        with pytest.raises(InvalidConfiguration, match=match):
            reader_of(node, None, **option)
