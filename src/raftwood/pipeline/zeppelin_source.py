"""Reads a table as it is now, for a batch query: a task for each partition, all side by side.

The driver begins a checkpoint of each partition when the query is planned, so that a repeated task
reads the same again. Tasks that read keep all checkpoints of the query alive, also those of waiting
partitions. Checkpoints end by their time to live, which begins with the last task; or, on request,
each with the task that has read it.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import pyarrow
import pyarrow.compute
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    InputPartition,
    IsNotNull,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError, Unavailable
from raftwood.pipeline.zeppelin_options import KvSourceOptions, connected_table
from raftwood.zeppelin.client import CheckpointGone, Kv
from raftwood.zeppelin.client.checkpoints import CheckpointAbout, PartitionPlace
from raftwood.zeppelin.slots import slot_of

BEGUN_AT_ONCE: Final = 8
RENEWALS_PER_TTL: Final = 4
TIME_MS_MAX: Final = 253_402_300_799_999
"""The year 9999; later ends are shown as this one."""
_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "expires": (TimestampType(),),
}


def table_schema() -> StructType:
    """Returns the schema of a table without a user's schema."""
    return StructType([StructField(name, kinds[0]) for name, kinds in _TYPES.items()])


class CheckpointPartition(InputPartition):
    """A partition's checkpoint in the form that Spark passes to a task."""

    def __init__(self, about: CheckpointAbout, group: str, nodes: tuple[str, ...]) -> None:
        super().__init__(about.partition)
        self.about = about
        self.group = group
        """The name that all checkpoints of the query share."""
        self.nodes = nodes
        """The nodes that have the checkpoint."""


class TableReader(DataSourceReader):
    """Reads a table: planned on the driver, read by tasks."""

    def __init__(self, options: KvSourceOptions, schema: StructType) -> None:
        self.options = options
        self.arrow = _checked(schema)
        self.prefix = options.prefix.encode()
        self.key: bytes | None = None
        """The only key that the query wants."""

    # On the driver.

    def partitions(self) -> Sequence[InputPartition]:
        kv = connected_table(self.options.access)
        wanted = [each for each in kv.partitions() if self._may_have_keys(each)]
        group = uuid4().hex
        try:
            begun = self._begin(kv, wanted, group)
        except RaftwoodError:
            kv.end_checkpoints(group, _distinct(each.master for each in wanted if each.master))
            raise
        nodes = _distinct(each.address for each in begun)
        return [CheckpointPartition(about, group, nodes) for about in begun]

    def _may_have_keys(self, place: PartitionPlace) -> bool:
        if self.key is not None:
            return slot_of(self.key) in place.slots
        tag = self.options.tag
        return not tag or slot_of(b"{" + tag.encode() + b"}") in place.slots

    def _begin(self, kv: Kv, places: list[PartitionPlace], group: str) -> list[CheckpointAbout]:
        def begin(place: PartitionPlace) -> CheckpointAbout:
            return kv.checkpoint(place.number, ttl_ms=self.options.ttl_ms, group=group).about

        with ThreadPoolExecutor(BEGUN_AT_ONCE) as threads:
            return list(threads.map(begin, places))

    # In tasks.

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, CheckpointPartition):
            return  # without partitions Spark makes one of its own
        about = partition.about
        try:
            yield from self._batches(partition)
        except CheckpointGone as error:
            raise NotFound(
                f"partition {about.partition} cannot be read as it was when the query began: "
                f"{error.message}. Run the query again; where its tasks wait for long, with a "
                "larger checkpointTtlSeconds"
            ) from error
        except Unavailable as error:
            raise Unavailable(
                f"node {about.address}, which has the checkpoint of partition {about.partition}, "
                f"does not answer: {error.message}. A task that is run again goes on once it does, "
                "unless it was started again: then run the query again"
            ) from error

    def _batches(self, partition: CheckpointPartition) -> Iterator[Any]:
        options = self.options
        kv = connected_table(options.access)
        checkpoint = kv.checkpoint_of(partition.about)
        tag = None if options.tag is None else options.tag.encode()
        interval_s = options.ttl_ms / 1000 / RENEWALS_PER_TTL
        renewed_s = time.monotonic() - interval_s
        for batch in checkpoint.arrow_pages(
            bytes_max=options.page_bytes, tag=tag, prefix=self.prefix
        ):
            if time.monotonic() >= renewed_s + interval_s:
                renewed_s = time.monotonic()
                kv.renew_checkpoints(partition.group, partition.nodes)
            if batch.num_rows:
                yield as_asked_for(batch, self.arrow)
        if options.ends_when_read:
            checkpoint.end()


class FilteringTableReader(TableReader):
    """A reader with `pushFilters`. Spark refuses one if its setting for that is off, so it is a
    class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's)
        return [each for each in filters if not self._take(each)]

    def _take(self, given: Filter) -> bool:
        """Whether nodes apply the filter exactly; for one key Spark filters as well."""
        if getattr(given, "attribute", ()) != ("key",):
            return False
        if isinstance(given, IsNotNull):
            return True  # no key is null
        if isinstance(given, StringStartsWith):
            wanted = given.value.encode()
            if wanted.startswith(self.prefix):
                self.prefix = wanted
                return True
            return self.prefix.startswith(wanted)
        if isinstance(given, EqualTo):
            key = given.value.encode() if isinstance(given.value, str) else bytes(given.value)
            if key.startswith(self.prefix):
                self.key = self.prefix = key
        return False


def as_asked_for(batch: Any, schema: Any) -> Any:
    """Casts the columns of a page to the types of a schema."""
    columns = []
    for field in schema:
        column = batch[field.name]
        if field.name == "expires":
            milliseconds = column.cast(pyarrow.int64())
            column = pyarrow.compute.min_element_wise(
                milliseconds, TIME_MS_MAX, skip_nulls=False
            ).cast(column.type)
        try:
            columns.append(column.cast(field.type))
        except pyarrow.ArrowInvalid as error:
            raise InvalidInput(
                f"column {field.name!r} has bytes that are no UTF-8: read it as binary"
            ) from error
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _checked(schema: StructType) -> Any:
    for field in schema.fields:
        kinds = _TYPES.get(field.name)
        if kinds is None:
            raise InvalidInput(f"a table has no column {field.name!r}: {', '.join(_TYPES)}")
        if field.dataType not in kinds:
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise InvalidInput(
                f"column {field.name!r} is {names}, not {field.dataType.simpleString()}"
            )
    return to_arrow_schema(schema, timezone="UTC")


def _distinct(addresses: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(addresses))
