"""A Spark session for as long as jobs run; what its processes say goes to a file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from raftwood.pipeline.session import LOCAL, spark_session

LOG_FILE: Final = "spark.log"
_STANDARD_ERROR: Final = 2


@contextmanager
def running_spark(
    name: str,
    *,
    folder: str,
    master: str = LOCAL,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Whatever Java and Spark's Python workers write stands in `spark.log` of the folder."""
    os.makedirs(folder, exist_ok=True)
    with _errors_to(f"{folder}/{LOG_FILE}"):
        # Processes that are started now inherit where standard error goes now.
        spark = spark_session(name, master=master, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _errors_to(path: str) -> Iterator[None]:
    kept = os.dup(_STANDARD_ERROR)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)
