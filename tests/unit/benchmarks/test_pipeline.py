"""The pipeline's comparison: its figures, its goals, and what it says to Spark."""

import msgspec
import pytest
from benchmarks.pipeline.cases import ARCHIVE, ARROW, FULL, KAFKA, TWO_COLUMNS
from benchmarks.pipeline.compare import PipelineResults, Spent
from benchmarks.pipeline.orders import Order, Rows, Scan, Write
from benchmarks.pipeline.report import tables, verdicts


def spent(*, spark_us: float, servers_us: float) -> Spent:
    return Spent(rows_per_second=1.0, spark_us=spark_us, servers_us=servers_us)


def test_ratios_are_of_the_cpu_of_spark_and_servers_together() -> None:
    results = PipelineResults(
        disk="ext4",
        rows=10,
        spent={
            KAFKA: {
                FULL: spent(spark_us=1.5, servers_us=0.5),
                TWO_COLUMNS: spent(spark_us=1.0, servers_us=0.5),
            },
            ARROW: {FULL: spent(spark_us=0.5, servers_us=0.3)},
            ARCHIVE: {TWO_COLUMNS: spent(spark_us=0.5, servers_us=0.0)},
        },
    )
    full, aggregate = verdicts(results)
    assert full.measured == pytest.approx(2.5)
    assert full.is_reached
    assert aggregate.measured == pytest.approx(3.0)
    assert not aggregate.is_reached
    assert [table.row_count for table in tables(results)] == [4, 2]


def test_a_run_without_kafka_has_figures_and_no_goals() -> None:
    figures = {ARROW: {FULL: spent(spark_us=0.5, servers_us=0.3)}}
    results = PipelineResults(disk="ext4", rows=10, spent=figures)
    assert verdicts(results) == []
    assert len(tables(results)) == 1


@pytest.mark.parametrize(
    "order",
    [
        Scan(rows=Rows(format="kafka", options={"subscribe": "t"}), by="partition", greatest="t"),
        Write(rows=Rows(format="parquet", path="/a"), format="loghub", path="p/s"),
    ],
)
def test_orders_come_to_spark_as_they_were_given(order: Order) -> None:
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order
