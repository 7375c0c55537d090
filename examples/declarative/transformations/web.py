"""Web-server logs, declared: a table of what was parsed, errors to a stream, figures by the minute.

Gateways and the access key come from the context in use, or from RAFTWOOD_LOGHUB_CLIENT__GATEWAYS,
RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY and RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def parsed() -> DataFrame:
    """A streaming table: each run reads what has come since the last one."""
    lines = spark.readStream.format("loghub").schema("message string").load("web/access")
    part = f.split("message", '"')
    moment = f.split_part(f.split_part(part[0], f.lit("["), f.lit(2)), f.lit("]"), f.lit(1))
    words = f.split(part[1], " ")
    numbers = f.split(part[2], " ")
    return lines.select(
        f.try_to_timestamp(moment, f.lit("dd/MMM/yyyy:HH:mm:ss.SSS Z")).alias("time"),
        f.split(part[0], " ")[0].alias("address"),
        words[1].alias("path"),
        numbers[1].cast("int").alias("status"),
        numbers[2].cast("bigint").alias("size"),
    )


dp.create_sink("errors", "loghub", {"path": "web/errors"})


@dp.append_flow(target="errors")
def only_errors() -> DataFrame:
    """Another stream gets what went wrong, each row once."""
    return spark.readStream.table("parsed").where("status >= 500")


@dp.materialized_view
def minutes() -> DataFrame:
    """Made anew from the table with each run."""
    return (
        spark.read.table("parsed")
        .groupBy(f.window("time", "1 minute").start.alias("minute"))
        .agg(
            f.count("*").alias("requests"),
            f.count_if(f.col("status") >= 500).alias("errors"),
            f.sum("size").alias("bytes"),
        )
    )
