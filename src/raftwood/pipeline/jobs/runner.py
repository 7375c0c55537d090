"""Runs the jobs of a pipeline in one Spark session, until `stop` is set.

Jobs that end run one after the other, those that do not end run side by side. The output of Spark's
processes goes to a file.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from raftwood.pipeline.jobs.job import Job, JobContext, JobProgress
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
    """Runs a session; Java and Spark's Python workers log errors to the folder's `spark.log`."""
    os.makedirs(folder, exist_ok=True)
    with _errors_to(f"{folder}/{LOG_FILE}"):
        # Processes that start now inherit standard error.
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


def run_jobs(
    spark: SparkSession,
    jobs: Sequence[Job[Any]],
    *,
    on_progress: Callable[[JobProgress], None],
    stop: threading.Event,
) -> list[JobProgress]:
    """Runs jobs; returns how each ended, in order. A job that fails stops those that run beside it;
    its error is raised when all have ended.
    """
    context = JobContext(spark, on_progress, stop)
    with ThreadPoolExecutor(max_workers=max(1, len(jobs)), thread_name_prefix="job") as threads:
        beside: list[Future[JobProgress]] = []
        try:
            for job in jobs:
                if stop.is_set():
                    break
                if job.trigger.interval_s is None:
                    job.run(context)
                else:
                    running = threads.submit(job.run, context)
                    # By itself it ends only after a failure.
                    running.add_done_callback(lambda _: stop.set())
                    beside.append(running)
        except BaseException:
            stop.set()
            raise
        for running in beside:
            running.result()
    return [job.progress for job in jobs]
