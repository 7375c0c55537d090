"""`spark_session`: a Spark session that is set up for pipelines."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from raftwood.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[2,4]"
"""Two cores, and four attempts of a task: plain `local[2]` repeats none."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "30s",
}
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "raftwood.pipeline.worker_daemon",
}
"""Where all of Spark is in one process: a cluster's executors have to reach the driver, and may
have our package from a file that comes with the job.
"""


DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""For Delta tables, with Delta's jars as `spark.jars`."""


def prepare_environment() -> None:
    """Spark starts Java and Python by what is in the environment."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def spark_session(
    name: str = "raftwood",
    *,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
    log_level: str = "WARN",
) -> "SparkSession":
    """The session of this process, made where there is none yet; `settings` go before ours."""
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 (reads the environment when it is loaded)

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in session_settings(master, settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def session_settings(master: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    local = _LOCAL_SETTINGS if master.startswith("local") else {}
    return {**SETTINGS, **local, **(settings or {})}


def make_active(session: "SparkSession") -> None:
    """Spark looks for sinks written in Python in the session that is active in the thread, and in a
    thread that Python has begun none is, until a frame is made there.
    """
    session.createDataFrame([], "nothing int")
