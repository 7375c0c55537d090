"""Runs the jobs of a pipeline in one Spark session: those that end one after the other, those
that do not side by side, until it is told to stop.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from raftwood.base.errors import RaftwoodError
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
    beside: list[_Running] = []
    try:
        for job in jobs:
            if stop.is_set():
                break
            if job.trigger.interval_s is None:
                job.run(context)
            else:
                beside.append(_Running(job, context))
    except BaseException:
        stop.set()
        raise
    finally:
        for each in beside:
            each.join()
    failed = [each.error for each in beside if each.error is not None]
    if failed:
        raise failed[0]
    return [job.progress for job in jobs]


class _Running:
    """A job in a thread of its own."""

    def __init__(self, job: Job[Any], context: JobContext) -> None:
        self._job = job
        self._context = context
        self.error: RaftwoodError | None = None
        self._thread = threading.Thread(target=self._run, name=f"job-{job.name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._job.run(self._context)
        except RaftwoodError as error:
            self.error = error
        finally:
            if not self._context.stop.is_set():
                self._context.stop.set()

    def join(self) -> None:
        self._thread.join()
