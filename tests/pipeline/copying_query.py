"""A streaming query as a program of its own: copies one logstore into another, and ends.

python -m tests.pipeline.copying_query JOB_FILE
"""

import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from raftwood.pipeline.session import LOCAL, spark_session

CONNECT = "sc://"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied, how fast, and where; `master` may be a Spark Connect server."""

    access: dict[str, str]
    source: str
    sink: str
    checkpoint: str
    scratch: str
    rows_per_batch: int
    master: str = LOCAL


def session(job: Job) -> SparkSession:
    if job.master.startswith(CONNECT):
        return SparkSession.builder.remote(job.master).getOrCreate()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "768m",
        "spark.local.dir": job.scratch,
        "spark.sql.warehouse.dir": f"{job.scratch}/warehouse",
        "spark.sql.streaming.pollingDelay": "10ms",
    }
    return spark_session("copying", master=job.master, settings=settings)


def main(file: str) -> None:
    job = msgspec.json.decode(Path(file).read_bytes(), type=Job)
    spark = session(job)
    query = (
        spark.readStream.format("loghub")
        .options(**job.access)
        .option("maxOffsetsPerTrigger", job.rows_per_batch)
        .option("minPartitions", 4)  # more tasks than cores: some have ended, others not begun
        .load(job.source)
        .writeStream.format("loghub")
        .options(**job.access)
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start(job.sink)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
