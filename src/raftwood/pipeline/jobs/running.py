"""Runs the jobs of a pipeline in one Spark session: those that end one after the other, those
that do not side by side, until it is told to stop.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from raftwood.pipeline.jobs.job import Job, JobContext
from raftwood.pipeline.jobs.progress import JobProgress


def run_jobs(
    spark: SparkSession,
    jobs: Sequence[Job[Any]],
    *,
    on_progress: Callable[[JobProgress], None],
    stop: threading.Event,
) -> list[JobProgress]:
    """How each job ended, in order. A job that fails stops those that run beside it; its error is
    raised when all have ended.
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
                    # By itself it ends only where it fails.
                    running.add_done_callback(lambda _: stop.set())
                    beside.append(running)
        except BaseException:
            stop.set()
            raise
        for running in beside:
            running.result()
    return [job.progress for job in jobs]
