"""`StreamingJob`: a query from stream to stream.

Exactly once: the checkpoint says which positions a micro-batch reads, and the sink stores what a
micro-batch writes once, however often it is written. For that its rows must come in the same order
each time: rows that go from source to sink as they are do so by themselves, and what was shuffled
on its way is sorted before it is written (`order`).
"""

import json
import re
from typing import Final, TypeVar

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from raftwood.pipeline.jobs.query_job import QueryJob, QueryOptions

_SHUFFLING: Final = re.compile(
    r"^\W*(Aggregate|Deduplicate\w*|Distinct|Except|FlatMapGroups\w*|GlobalLimit|Intersect|Join|"
    r"LateralJoin|Repartition\w*|Sort|TransformWithState\w*|Window)\b",
    re.MULTILINE,
)


class StreamOptions(QueryOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of a job from stream to stream."""

    target: str = msgspec.field(name="to")
    """PROJECT/LOGSTORE."""
    key_column: str | None = None
    """Rows with the same value go to the same shard."""


Streamed = TypeVar("Streamed", bound=StreamOptions)


class StreamingJob(QueryJob[Streamed]):
    """Subclasses say what is made of the rows."""

    @property
    def key_column(self) -> str | None:
        return self.options.key_column

    @property
    def order(self) -> tuple[str, ...]:
        """Columns that tell any two rows apart; none where rows come in one order by themselves."""
        return ()

    def sink_options(self) -> dict[str, str]:
        key = self.key_column
        return {**self.access.options(), **({} if key is None else {"keyColumn": key})}

    def write(self, rows: DataFrame, writer: DataStreamWriter) -> StreamingQuery:
        if self.order:
            return writer.foreachBatch(self._write).start()
        self._check_order(rows)
        return writer.format("loghub").options(**self.sink_options()).start(self.options.target)

    def _check_order(self, rows: DataFrame) -> None:
        """Rows that were shuffled come in any order, and what is written again would be taken for
        what it is not.
        """
        made = getattr(rows, "_jdf", None)
        if made is None:
            return  # through Spark Connect there is no plan to look at
        what = shuffling(made.queryExecution().analyzed().toString())
        if what is not None:
            raise self.invalid(
                f"its rows do not keep their order ({what}): name columns that tell any two of "
                "them apart, as order_by of a transform or as `order` of a class of your own"
            )

    def _write(self, rows: DataFrame, batch: int) -> None:
        with open(f"{self.checkpoint}/metadata", "rb") as file:
            query = json.loads(file.read())["id"]
        (
            rows.sortWithinPartitions(*self.order)
            .write.format("loghub")
            .options(**self.sink_options(), txnAppId=query, txnVersion=str(batch))
            .mode("append")
            .save(self.options.target)
        )


def shuffling(plan: str) -> str | None:
    """What in one of Spark's plans changes the order of rows, or may; None where nothing does."""
    found = _SHUFFLING.search(plan)
    return None if found is None else found[1]
