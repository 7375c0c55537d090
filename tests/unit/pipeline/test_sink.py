"""The sink without Spark: what a task writes is stored once, however often it is run."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from raftwood.loghub.model import Shard, ShardStatus
from raftwood.pipeline.hub import disconnect
from raftwood.pipeline.options import SinkOptions
from raftwood.pipeline.sink import SinkLayout, write_rows
from raftwood.pipeline.sink_sender import Way, WriteKey, next_shard
from tests.kits.loghub.hub import LOGSTORE, PROJECT
from tests.kits.pipeline.archived_logstore import ArchivedLogstore, with_logstore

PLAIN = SinkLayout([("message", "message")], [], "message")
MAPS = SinkLayout([], [("contents", "")], None)
_MAP = pyarrow.map_(pyarrow.string(), pyarrow.string())


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    yield
    disconnect()


def numbered(numbers: range) -> Any:
    return pyarrow.record_batch({"message": [f"m{number}" for number in numbers]})


def messages(logstore: ArchivedLogstore) -> Counter[str]:
    return Counter(logstore.messages())


def test_a_task_that_is_run_again_stores_nothing_twice_while_shards_are_split_and_merged(
    tmp_path: Path,
) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        options = SinkOptions(access=logstore.access, key_column="message")
        key = WriteKey("query", 7, 0)
        batches = [numbered(range(first, first + 10)) for first in range(0, 100, 10)]

        def broken_off() -> Iterator[Any]:
            yield from batches[:6]
            with logstore.client() as client:
                client.split_shard(PROJECT, LOGSTORE, shard=0)
            yield from batches[6:8]
            with logstore.client() as client:
                client.merge_shard(PROJECT, LOGSTORE, shard=3)
            yield batches[8]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_rows(options, PLAIN, key, broken_off())
        for _ in range(2):
            assert write_rows(options, PLAIN, key, iter(batches)).rows == 100
        assert messages(logstore) == Counter(f"m{number}" for number in range(100))

    with_logstore(tmp_path, work)


def test_records_of_many_kinds_are_stored_in_batches_that_a_logstore_takes(
    tmp_path: Path,
) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        rows = [[("message", f"m{n}"), (f"key-{n % 900}", "v")] for n in range(10_000)]
        batch = pyarrow.record_batch({"contents": pyarrow.array(rows, _MAP)})
        options = SinkOptions(access=logstore.access)
        for _ in range(2):
            write_rows(options, MAPS, WriteKey("query", 0, 0), iter([batch]))
        assert messages(logstore) == Counter(f"m{number}" for number in range(10_000))

    with_logstore(tmp_path, work)


def shard(number: int, begin: str, end: str, parents: tuple[int, ...] = ()) -> Shard:
    return Shard(
        id=number,
        log=f"log-{number}",
        status=ShardStatus.READWRITE,
        begin=begin * 32,
        end=end * 32,
        created_s=0,
        parents=parents,
    )


def test_rows_go_on_to_who_is_there_where_a_child_is_gone_before_its_parent() -> None:
    place = "5" * 32
    shards = [shard(0, "0", "f"), shard(4, "4", "8", (1,)), shard(5, "8", "f", (1,))]
    found = next_shard(shards, 0, place)
    assert found is not None
    assert found.id == 4
    assert next_shard(shards[:1], 0, place) is None
    assert Way(0).on_to(4) == Way(4, (0,))
