"""A streaming query as a program of its own: copies one logstore into another, and ends.

python -m tests.kits.pipeline.copying_query JOB_FILE
"""

import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from raftwood.pipeline.session import LOCAL, spark_session
from tests.kits.pipeline.held_sink import FORGETFUL, FORMAT, GATE, HeldSink
from tests.kits.pipeline.quick_java import QUICK_SPARK, quick_java

CONNECT = "sc://"
ROWS_PER_CHUNK = 10
"""Even the smallest task has more chunks than are let on while a blow falls: it meets them all."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied, how fast, and where; `master` may be a Spark Connect server."""

    access: dict[str, str]
    source: str
    sink: str
    checkpoint: str
    scratch: str
    rows_per_batch: int
    master: str = LOCAL
    gate: str | None = None
    """The folder of a gate, which holds each micro-batch in its middle."""
    forgetful: str = ""
    """The logstore of the wrong sink behind the gate."""


def session(job: Job) -> SparkSession:
    if job.master.startswith(CONNECT):
        return SparkSession.builder.remote(job.master).getOrCreate()
    settings = {
        **QUICK_SPARK,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": quick_java(),
        "spark.executor.extraJavaOptions": quick_java(),
        "spark.executor.memory": "768m",
        "spark.local.dir": job.scratch,
        "spark.sql.warehouse.dir": f"{job.scratch}/warehouse",
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_CHUNK),
    }
    return spark_session("copying", master=job.master, settings=settings)


def main(file: str) -> None:
    job = msgspec.json.decode(Path(file).read_bytes(), type=Job)
    spark = session(job)
    sink = "loghub"
    behind: dict[str, str] = {}
    if job.gate is not None:
        spark.dataSource.register(HeldSink)
        sink, behind = FORMAT, {GATE: job.gate, FORGETFUL: job.forgetful}
    query = (
        spark.readStream.format("loghub")
        .options(**job.access)
        .option("maxOffsetsPerTrigger", job.rows_per_batch)
        .option("minPartitions", 4)  # more tasks than cores: some have ended, others not begun
        .load(job.source)
        .writeStream.format(sink)
        .options(**job.access, **behind)
        .option("checkpointLocation", job.checkpoint)
        .trigger(availableNow=True)
        .start(job.sink)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
