"""What Spark reports: the present task and micro-batch, and the reason of a failure in a line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import WriterCommitMessage

from raftwood.base.errors import InternalError, InvalidConfiguration

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class TaskCommit(WriterCommitMessage):
    """The result of a task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def partition() -> int:
    return _task().partitionId()


def micro_batch() -> tuple[str, int]:
    """Returns the query, by its checkpoint's id, and the number of its micro-batch."""
    task = _task()
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise InvalidConfiguration("Spark does not say which micro-batch this is: use pyspark 4.2")
    return f"query-{query}", int(batch)


SPARK_ERRORS: Final = (PySparkException, Py4JError)


def reason_of(error: Exception) -> str:
    """Returns our own error if there is one in it, else Spark's first meaningful line."""
    text = str(error).partition("=== Streaming Query ===")[0]
    lines = [line.strip(" :") for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith("An error occurred while call")]
    ours = [line.partition(": ")[2] for line in told if line.startswith("raftwood.")]
    return (ours[-1] if ours else told[0] if told else type(error).__name__)[:500]


@contextmanager
def spark_errors_told(what: str) -> Iterator[None]:
    """Raises `InternalError` that says what failed, and why."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise InternalError(f"{what} failed: {reason_of(error)}") from error
