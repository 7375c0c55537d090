"""Planning as Spark asks for it, of a reader without a session."""

from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from raftwood.pipeline.columns import projection_for, wanted_columns
from raftwood.pipeline.options import SourceOptions
from raftwood.pipeline.source import RangePartition, StreamReader
from tests.kits.pipeline.archived_logstore import ArchivedLogstore, with_logstore

MESSAGE = projection_for(wanted_columns(["message"]))


def reader_of(logstore: ArchivedLogstore, **options: Any) -> StreamReader:
    return StreamReader(SourceOptions(access=logstore.access, **options), MESSAGE)


def ranges_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    found = reader.partitions(start, end)
    return [each.range for each in found if isinstance(each, RangePartition)]


def test_a_micro_batch_is_cut_as_it_was_planned_whatever_the_options_are_by_now(
    tmp_path: Path,
) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(8):
            logstore.put(2)
        reader = reader_of(logstore, partitions_min=4)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        planned = ranges_of(reader, start, end)
        assert len(planned) == 4
        reader.stop()
        again = reader_of(logstore, partitions_min=2)
        assert ranges_of(again, start, end) == planned
        assert again.latestOffset(end, ReadAllAvailable()) == end
        for _ in range(8):
            logstore.put(2)
        later = again.latestOffset(end, ReadAllAvailable())
        assert len(ranges_of(again, end, later)) == 2
        again.stop()

    with_logstore(tmp_path, work, shards=1)
