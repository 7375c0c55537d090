"""`Keys`: rows of a stream become keys of a table of Zeppelin, the last row of each the value."""

from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from raftwood.pipeline.jobs.query_job import QueryJob, QueryOptions
from raftwood.pipeline.jobs.transform import with_sql
from raftwood.pipeline.jobs.triggers import duration_s


class KeysOptions(QueryOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is the key, and what the value; the user of the table is in [zeppelin]."""

    key: str
    """With columns in braces, such as `minute:{window_start}`."""
    value: str | None = None
    """A column; else the row as JSON."""
    operation: Literal["set", "increment"] = "set"
    ttl: str | None = None
    """How long keys are kept, such as `7 days`."""
    sql: str | None = None
    """A query over `input`, before rows are written."""


class Keys(QueryJob[KeysOptions]):
    """Rows as they come: what comes later replaces what came before."""

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
        """As the sink takes them."""
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
