"""Which task of Spark's this is: what it writes is known again by that."""

from typing import Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from raftwood.base.errors import InvalidConfiguration

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What a task has stored."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def partition() -> int:
    return _task().partitionId()


def micro_batch() -> tuple[str, int]:
    """The query, by the id that its checkpoint has, and the number of its micro-batch."""
    task = _task()
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise InvalidConfiguration("Spark does not say which micro-batch this is: use pyspark 4.2")
    return f"query-{query}", int(batch)
