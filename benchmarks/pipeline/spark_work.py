"""Spark in a process of its own: takes orders as lines of JSON, and says what each one took."""

import argparse
import ctypes
import os
import sys
import time
from typing import Any

import msgspec
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import raftwood
from benchmarks.pipeline.orders import NOTHING, READ, Answer, Archive, Order, Rows, Scan, Write
from raftwood.pipeline.archive.archiver import Archiver
from raftwood.pipeline.options import source_options

PR_SET_CHILD_SUBREAPER = 36
"""Of <linux/prctl.h>."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "benchmarks.pipeline.python_daemon",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.compression.codec": "zstd",
}


def session(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("benchmark")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if jars:
        builder = builder.config("spark.jars", jars)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def keep_orphans() -> None:
    """Who loses its parent becomes this process's child, and is still counted when it has ended:
    nobody waits for it. Spark's Python workers lose theirs.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def spent_s() -> float:
    """The CPU of this process and all below it, among them those whose end their parents saw."""
    total = 0.0
    here = psutil.Process()
    for each in [here, *here.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def frame(spark: SparkSession, rows: Rows) -> DataFrame:
    if rows.format == READ:
        given: dict[str, Any] = {**rows.options, "columns": rows.expressions or None}
        history: DataFrame = raftwood.read(engine="spark", spark=spark, **given)
        return history
    reader = spark.read.format(rows.format).options(**rows.options)
    if rows.schema is not None:
        reader = reader.schema(rows.schema)
    read = reader.load(rows.path)
    return read.selectExpr(*rows.expressions) if rows.expressions else read


def done(spark: SparkSession, order: Order) -> int | None:
    """The rows that it counted."""
    if isinstance(order, Archive):
        access = source_options(order.options).access
        return Archiver.with_spark(spark, access, order.uri).run().rows
    if isinstance(order, Write):
        writer = frame(spark, order.rows).write.format(order.format).options(**order.options)
        writer.mode(order.mode).save(order.path)
        return None
    if order.by is None:
        frame(spark, order.rows).write.format(NOTHING).mode("overwrite").save()
        return None
    return _aggregated(spark, order)


def _aggregated(spark: SparkSession, order: Scan) -> int:
    assert order.by is not None
    groups = (
        frame(spark, order.rows)
        .groupBy(order.by)
        .agg(sql.count(sql.lit(1)).alias("rows"), sql.max(order.greatest))
        .collect()
    )
    return sum(each["rows"] for each in groups)


def main() -> None:
    keep_orphans()
    flags = argparse.ArgumentParser()
    flags.add_argument("--jars", default="")
    spark = session(flags.parse_args().jars)
    decoder = msgspec.json.Decoder(Order)
    for line in sys.stdin:
        order = decoder.decode(line)
        cpu, began = spent_s(), time.perf_counter()
        count = done(spark, order)
        answer = Answer(elapsed_s=time.perf_counter() - began, cpu_s=spent_s() - cpu, count=count)
        print(msgspec.json.encode(answer).decode(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
