"""`QueryJob`: a job that is one Structured Streaming query of Spark over a stream.

The checkpoint says which positions a micro-batch reads, also when it has to run again; subclasses
say where the rows go. `StreamingJob` writes to a stream, exactly once: the sink stores a
micro-batch once, however often it is written. This requires that its rows come in the same order
each time: rows that go unchanged from source to sink do, and shuffled rows are sorted before they
are written (`order`).
"""

import json
import re
import threading
import time
import zlib
from abc import abstractmethod
from typing import Any, Final, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from raftwood.pipeline.hub import Hub
from raftwood.pipeline.jobs.job import STOP_S_MAX, Job, JobContext, JobOptions, JobState, lag_of
from raftwood.pipeline.offsets import StreamOffset
from raftwood.pipeline.session import make_active

_LOOK_S: Final = 0.25


class QueryOptions(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of reading a stream."""

    fields: str | None = None
    """A schema in Spark's syntax: the columns, and contents by name, to read."""
    starting: str = "earliest"
    """Where a new checkpoint begins: `earliest`, `latest`, or positions by shard as JSON."""
    rows_per_batch_max: int | None = None
    fails_on_data_loss: bool = True
    holds_log: bool = True
    """Prevents truncation of what the job has not read yet, also while it does not run."""


Queried = TypeVar("Queried", bound=QueryOptions)


class QueryJob(Job[Queried]):
    """Subclasses define the transformation of rows, and their target."""

    _read_to: StreamOffset | None = None
    """The offset behind the last micro-batch of this run."""

    def read(self, spark: SparkSession) -> DataFrame:
        """Returns the stream's rows."""
        options = self.options
        reader = spark.readStream.format("loghub").options(**self.source_options())
        if options.fields is not None:
            reader = reader.schema(options.fields)
        return reader.load(options.source)

    def source_options(self) -> dict[str, str]:
        options = self.options
        found = {
            **self.access.options(),
            "startingOffsets": options.starting,
            "failOnDataLoss": str(options.fails_on_data_loss).lower(),
        }
        if options.rows_per_batch_max is not None:
            found["maxOffsetsPerTrigger"] = str(options.rows_per_batch_max)
        if options.holds_log:
            found["group"] = self.group
        return found

    @property
    def group(self) -> str:
        """Returns the consumer group whose checkpoints follow the job."""
        return f"job-{self.name[:64]}-{zlib.crc32(self.folder.encode()):08x}"

    @abstractmethod
    def build(self, rows: DataFrame) -> DataFrame:
        """Returns the rows to write, made from the rows that are read."""

    @abstractmethod
    def write(self, rows: DataFrame, writer: DataStreamWriter) -> StreamingQuery:
        """Starts the query with a writer that lacks only its sink; returns it."""

    @property
    def output_mode(self) -> str:
        """Returns Spark's name of the output mode."""
        return "append"

    @property
    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint"

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Starts the query and returns it, for programs that supervise it themselves."""
        make_active(spark)
        rows = self.build(self.read(spark))
        writer = (
            rows.writeStream.option("checkpointLocation", self.checkpoint)
            .queryName(self.name)
            .outputMode(self.output_mode)
            .trigger(**self.trigger.spark_arguments())
        )
        return self.write(rows, writer)

    def work(self, context: JobContext) -> None:
        self._read_to = None
        listener = _Listener(self)
        context.spark.streams.addListener(listener)
        try:
            query = self.start(context.spark)
            try:
                self._attend(query, context.stop)
            finally:
                query.stop()
            listener.wait_for_end()
        finally:
            context.spark.streams.removeListener(listener)
        self._note_read()

    def _note_read(self) -> None:
        """Sets the checkpoints after the last micro-batch: the source does so at the next one."""
        if self.options.holds_log and self._read_to is not None:
            with Hub.connect(self.access.to(self.options.source)) as hub:
                hub.note(self.group, self._read_to.positions)

    def _attend(self, query: StreamingQuery, stop: threading.Event) -> None:
        while not query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]
            if stop.is_set():
                _let_finish(query)
                return

    def saw(self, progress: dict[str, Any]) -> None:
        """Handles the progress of a micro-batch that is done."""
        sources = progress.get("sources") or [{}]
        if isinstance(end := sources[0].get("endOffset"), dict):
            self._read_to = StreamOffset.from_json(end)
        lags = [lag for lag in map(lag_of, sources) if lag is not None]
        late = sum(
            max(0, each.get("numRowsDroppedByWatermark", 0))
            for each in progress.get("stateOperators", ())
        )
        self.tell(
            state=JobState.RUNNING,
            batches=self.progress.batches + 1,
            rows=self.progress.rows + progress.get("numInputRows", 0),
            rows_per_s=round(progress.get("processedRowsPerSecond") or 0.0, 1),
            lag=sum(lags) if lags else None,
            late=self.progress.late + late,
            watermark=(progress.get("eventTime") or {}).get("watermark"),
        )


def _let_finish(query: StreamingQuery) -> None:
    """Waits, within bounds, for the end of a micro-batch; the next run repeats a cancelled one."""
    deadline = time.monotonic() + STOP_S_MAX
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


class _Listener(StreamingQueryListener):
    """Receives the events of all queries of a session; passes on those of one job."""

    def __init__(self, job: QueryJob[Any]) -> None:
        self._job = job
        self._query: str | None = None
        self._ended = threading.Event()

    def wait_for_end(self) -> None:
        """Events arrive a moment after what they report."""
        self._ended.wait(STOP_S_MAX)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name, as those below)
        if event.name == self._job.name:
            self._query = str(event.runId)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        if str(event.progress.runId) == self._query:
            self._job.saw(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        if str(event.runId) == self._query:
            self._ended.set()


_SHUFFLING: Final = re.compile(
    r"^\W*(Aggregate|Deduplicate\w*|Distinct|Except|FlatMapGroups\w*|GlobalLimit|Intersect|Join|"
    r"LateralJoin|Repartition\w*|Sort|TransformWithState\w*|Window)\b",
    re.MULTILINE,
)


class StreamOptions(QueryOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a job from stream to stream."""

    target: str = msgspec.field(name="to")
    """PROJECT/LOGSTORE."""
    key_column: str | None = None
    """Rows with the same value go to the same shard."""


Streamed = TypeVar("Streamed", bound=StreamOptions)


class StreamingJob(QueryJob[Streamed]):
    """Subclasses define the transformation of rows."""

    @property
    def key_column(self) -> str | None:
        return self.options.key_column

    @property
    def order(self) -> tuple[str, ...]:
        """Returns columns that distinguish any two rows; empty if their order is fixed anyway."""
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
        """Raises if shuffled rows have no fixed order: a repeated write would store other rows."""
        made = getattr(rows, "_jdf", None)
        if made is None:
            return  # Spark Connect provides no plan to check
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
    """Returns the step of a Spark plan that may change the order of rows; None without one."""
    found = _SHUFFLING.search(plan)
    return None if found is None else found[1]
