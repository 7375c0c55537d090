"""DataFrames into a table: each micro-batch once, whoever dies, whatever comes again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raftwood.zeppelin.client import Kv
from tests.kits.pipeline.dying_kv_sink import FORMAT, DyingSink
from tests.kits.zeppelin.data_node import data_node
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS = 600
"""Of each file, with 200 keys."""


class Table:
    """A node of Zeppelin's, and a folder whose files are a stream."""

    def __init__(self, port: int, kv: Kv, spark: "SparkSession", folder: Path) -> None:
        self.kv = kv
        self.spark = spark
        self.access = {"addresses": f"127.0.0.1:{port}", "user": WRITER, "password": PASSWORD}
        self._source = folder / "source"
        self._source.mkdir()
        self.checkpoint = folder / "checkpoint"

    def add_file(self, number: int) -> None:
        rows = [{"id": row % 200, "n": 1, "file": number} for row in range(ROWS)]
        text = "\n".join(map(json.dumps, rows))
        (self._source / f"{number:04}.json").write_text(text)

    def stream(self) -> "DataFrame":
        reader = self.spark.readStream.schema("id bigint, n bigint, file bigint")
        return reader.option("maxFilesPerTrigger", 1).json(str(self._source))

    def write(self, frame: "DataFrame", **options: Any) -> None:
        """What is there of a stream."""
        writer = frame.writeStream.format(FORMAT).options(**self.access, **options)
        self._run(writer)

    def write_sums(self, **options: Any) -> None:
        """Sums that are shuffled, and change with every micro-batch."""

        def write(rows: "DataFrame", batch: int) -> None:
            rows.write.format("zeppelin").mode("append").options(
                **self.access, **options, txnAppId="sums", txnVersion=batch
            ).save()

        sums = self.stream().groupBy("id").agg({"n": "sum"}).withColumnRenamed("sum(n)", "total")
        self._run(sums.writeStream.outputMode("update").foreachBatch(write))

    def _run(self, writer: "DataStreamWriter") -> None:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def forget_last_batch(self) -> None:
        """As if the driver had been killed before it noted the last micro-batch as done."""
        commits = [each for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()]
        last = max(commits, key=lambda each: int(each.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def table(spark: "SparkSession", tmp_path: Path) -> Iterator[Table]:
    with (
        data_node() as node,
        Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password=PASSWORD) as kv,
    ):
        yield Table(node.port, kv, spark, tmp_path)


def test_each_micro_batch_is_added_once_whoever_dies_and_comes_again(table: Table) -> None:
    table.spark.dataSource.register(DyingSink)
    counts: dict[str, Any] = {
        "key": "count:{id}",
        "valueColumn": "n",
        "operation": "increment",
        "rowsPerRequest": 40,
    }
    table.add_file(0)
    table.add_file(1)
    table.write(table.stream(), **counts)
    values = table.kv.get_many(f"count:{number}" for number in range(200))
    assert values == [b"6"] * 200
    table.forget_last_batch()
    table.add_file(2)
    table.write(table.stream(), **counts)
    values = table.kv.get_many(f"count:{number}" for number in range(200))
    assert values == [b"9"] * 200


def test_a_replay_of_shuffled_rows_leaves_what_came_later(table: Table) -> None:
    figures: dict[str, Any] = {"key": "sum:{id}", "ttlSeconds": 3600}
    table.add_file(0)
    table.write_sums(**figures)
    assert json.loads(table.kv.get("sum:7") or b"") == {"id": 7, "total": 3}
    assert 3_500_000 < (table.kv.ttl_ms("sum:7") or 0) <= 3_600_000
    table.add_file(1)
    table.write_sums(**figures)
    # Somebody took one away since: it does not come back with the micro-batch.
    table.kv.delete("sum:8")
    table.forget_last_batch()
    table.write_sums(**figures)
    assert table.kv.get("sum:8") is None
    assert json.loads(table.kv.get("sum:7") or b"")["total"] == 6
    assert table.kv.size() == 199


def test_a_batch_write_of_one_transaction_is_written_once(table: Table) -> None:
    frame = table.spark.range(500).selectExpr("concat('k', id % 100) as k", "bigint(1) as n")
    for version in (1, 1, 2):
        frame.write.format("zeppelin").mode("append").options(
            **table.access,
            keyColumn="k",
            valueColumn="n",
            operation="increment",
            txnAppId="numbers",
            txnVersion=version,
        ).save()
    assert table.kv.get_many(["k0", "k99"]) == [b"10", b"10"]
    with pytest.raises(Exception, match="write with mode append"):
        frame.write.format("zeppelin").mode("overwrite").options(
            **table.access, keyColumn="k"
        ).save()
