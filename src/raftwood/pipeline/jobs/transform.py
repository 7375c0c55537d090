"""`Transform`: changes rows of a stream by SQL or a Python function, into another stream.

`Keys` puts them into a table of Zeppelin instead; the last row of each key is the value.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Literal

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from raftwood.pipeline.jobs.job import duration_s, function_named
from raftwood.pipeline.jobs.query import QueryJob, QueryOptions, StreamingJob, StreamOptions

INPUT: Final = "input"
"""The name of the stream's rows in SQL."""
_naming: Final = threading.Lock()
"""Jobs in threads share the session, and so its names."""
RowFunction = Callable[[dict[str, Any]], dict[str, Any] | Iterable[dict[str, Any]] | None]
_OUTPUT: Final = "time timestamp, topic string, contents map<string,string>"
_ARROW: Final = pyarrow.schema(
    [
        ("time", pyarrow.timestamp("us", "UTC")),
        ("topic", pyarrow.string()),
        ("contents", pyarrow.map_(pyarrow.string(), pyarrow.string())),
    ]
)


class TransformOptions(StreamOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give either `sql` or `python`."""

    sql: str | None = None
    """A query over `input`; columns that are not a record's own become contents."""
    python: str | None = None
    """`module:function`: it receives a row as a dict, and returns contents, several, or None."""
    order_by: tuple[str, ...] = ()
    """For SQL that joins, groups or removes duplicates: columns that distinguish any two rows."""


class Transform(StreamingJob[TransformOptions]):
    """SQL or Python over rows."""

    kind = "transform"
    options_type = TransformOptions

    def check(self) -> None:
        if (self.options.sql is None) == (self.options.python is None):
            raise self.invalid("give either sql or python")

    @property
    def order(self) -> tuple[str, ...]:
        return self.options.order_by

    def build(self, rows: DataFrame) -> DataFrame:
        if self.options.sql is not None:
            return with_sql(rows, self.options.sql)
        return rows.mapInArrow(_mapped(function_named(self.options.python)), _OUTPUT)


def with_sql(rows: DataFrame, query: str) -> DataFrame:
    """Returns the query's result; the view `input` exists only while the query is analyzed."""
    with _naming:
        rows.createOrReplaceTempView(INPUT)
        try:
            return rows.sparkSession.sql(query)
        finally:
            rows.sparkSession.catalog.dropTempView(INPUT)


def _mapped(
    function: RowFunction,
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def over(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        # Spark pickles this function, and the functions that it calls, by value.
        return map(partial(_made, function), batches)

    return over


def _made(function: RowFunction, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    made = [
        {
            "time": row.get("time"),
            "topic": row.get("topic") or "",
            "contents": {name: str(value) for name, value in contents.items()},
        }
        for row in batch.to_pylist(maps_as_pydicts="lossy")
        for contents in _contents(function(row))
    ]
    return pyarrow.RecordBatch.from_pylist(made, schema=_ARROW)


def _contents(
    returned: dict[str, Any] | Iterable[dict[str, Any]] | None,
) -> Iterable[dict[str, Any]]:
    if returned is None:
        return ()
    return (returned,) if isinstance(returned, dict) else returned


class KeysOptions(QueryOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key and the value; [zeppelin] names the user of the table."""

    key: str
    """A template with columns in braces, such as `minute:{window_start}`."""
    value: str | None = None
    """A column; by default the row as JSON."""
    operation: Literal["set", "increment"] = "set"
    ttl: str | None = None
    """How long keys are kept, such as `7 days`."""
    sql: str | None = None
    """A query over `input`, applied before rows are written."""


class Keys(QueryJob[KeysOptions]):
    """Writes rows in order: later ones replace earlier ones."""

    kind = "keys"
    options_type = KeysOptions

    def check(self) -> None:
        if self.options.ttl is not None and duration_s(self.options.ttl) < 1:
            raise self.invalid(f"ttl is {self.options.ttl!r}: give a second at least")

    def build(self, rows: DataFrame) -> DataFrame:
        return rows if self.options.sql is None else with_sql(rows, self.options.sql)

    def write(self, rows: DataFrame, writer: DataStreamWriter) -> StreamingQuery:  # noqa: ARG002
        return writer.format("zeppelin").options(**self.table_options()).start()

    def table_options(self) -> dict[str, str]:
        """Returns the options of the sink."""
        options, table = self.options, self.access.zeppelin
        for name in ("addresses", "password"):
            if not table.get(name):
                raise self.invalid(
                    f"say {name} in [zeppelin], or set RAFTWOOD_ZEPPELIN_CLIENT__{name.upper()}"
                )
        found = {**table, "key": options.key, "operation": options.operation}
        if options.value is not None:
            found["valueColumn"] = options.value
        if options.ttl is not None:
            found["ttlSeconds"] = str(int(duration_s(options.ttl)))
        return found
