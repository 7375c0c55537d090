"""Streams that are read from their archives on, micro-batch by micro-batch, as Spark does it."""

import random
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import InvalidConfiguration
from raftwood.pipeline.columns import projection_for, wanted_columns
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import (
    StreamOffset,
    advanced,
    available,
    check_losses,
    initial_offset,
    losses,
    ranges,
)
from raftwood.pipeline.options import SourceOptions, source_options
from raftwood.pipeline.planning import QuerySpace
from raftwood.pipeline.range_reader import read_range
from tests.kits.loghub.hub import LOGSTORE, PROJECT
from tests.kits.pipeline.archived_logstore import (
    ArchivedLogstore,
    Meddling,
    step,
    with_logstore,
)

MESSAGE = projection_for(wanted_columns(["message"]))


class Query:
    """A streaming query without Spark."""

    def __init__(self, logstore: ArchivedLogstore, hub: Hub, **options: Any) -> None:
        self.options = SourceOptions(access=logstore.access, archive=logstore.uri, **options)
        self.space = QuerySpace(self.options)
        self.hub = hub
        views = self.space.views(hub)
        self.offset: StreamOffset = initial_offset(views, self.space.starts(hub, views))
        self.found: list[str] = []

    def advance(self, rows_max: int) -> int:
        """One micro-batch; how many records it had."""
        views = self.space.views(self.hub)
        check_losses(losses(self.offset, views), fails=True)
        ends = self.space.admitted(self.hub, available(self.offset, views), rows_max)
        after = advanced(self.offset, views, ends)
        before = len(self.found)
        for wanted in ranges(self.offset, after):
            for batch in read_range(self.options, MESSAGE, wanted, self.hub):
                self.found += batch.column("message").to_pylist()
        is_new = after != self.offset
        self.offset = after
        return len(self.found) - before if len(self.found) > before else int(is_new)

    def drain(self) -> None:
        while self.advance(1000):
            pass


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_from_its_archive_on_has_every_record_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(6):
            step(logstore, rng)
        with Hub.connect(logstore.access) as hub:
            query = Query(logstore, hub)
            for _ in range(10):
                query.advance(rng.randint(1, 30))
                step(logstore, rng)
            query.drain()
        assert sorted(query.found) == sorted(logstore.written)

    with_logstore(tmp_path, work)


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_has_every_record_once_whatever_happens_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)

    def work(logstore: ArchivedLogstore) -> None:
        meddling = Meddling(logstore, rng, monkeypatch)
        step(logstore, rng)
        with Hub.connect(logstore.access) as hub:
            query = Query(logstore, hub)
            for _ in range(8):
                step(logstore, rng)
                with meddling.on():
                    query.advance(rng.randint(1, 30))
            query.drain()
        assert sorted(query.found) == sorted(logstore.written)

    with_logstore(tmp_path, work)


def test_micro_batches_take_archived_files_whole_and_begin_at_a_time(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(4):
            logstore.put(10)
            logstore.archive(is_truncating=True)
        logstore.put(5)
        with Hub.connect(logstore.access) as hub:
            query = Query(logstore, hub)
            assert [query.advance(25), query.advance(25)] == [20, 25]
            late = Query(logstore, hub, starting_s=25)
            late.drain()
            assert late.found == [f"m{number}" for number in range(20, 45)]

    with_logstore(tmp_path, work, shards=1)


def test_some_shards_are_read_alone(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(20)
        with Hub.connect(logstore.access) as hub:
            found = []
            for shard in (0, 1):
                query = Query(logstore, hub, shards=(shard,))
                query.drain()
                assert 0 < len(query.found) < 20
                found += query.found
        assert sorted(found) == sorted(logstore.written)

    with_logstore(tmp_path, work)


def test_a_group_follows_a_query(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(4)
        with Hub.connect(logstore.access) as hub, logstore.client() as client:
            query = Query(logstore, hub)
            hub.note("query", query.offset.positions)
            assert logstore.archive(is_truncating=True).truncated == {}
            query.drain()
            hub.note("query", query.offset.positions)
            assert logstore.archive(is_truncating=True).truncated == query.offset.positions
            assert "query" in [each.name for each in client.groups(PROJECT, LOGSTORE)]

    with_logstore(tmp_path, work, shards=1)


def test_options_for_archives_are_read() -> None:
    given = {"gateways": "h:1", "accessKey": "k", "accessSecret": "s", "path": "p/s"}
    found = source_options({**given, "archive": "/a", "group": "g", "shards": "0,3"})
    assert (found.archive, found.group, found.shards) == ("/a", "g", (0, 3))
    with pytest.raises(InvalidConfiguration, match="0,3"):
        source_options({**given, "shards": "all"})
