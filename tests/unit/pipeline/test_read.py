"""`raftwood.read`: history and tail are the stream, for any cut, by the real way without Spark."""

import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import raftwood.pipeline.read
from raftwood.base.errors import InvalidInput
from raftwood.loghub.client import RecordsFreed
from raftwood.pipeline.archive import reader
from tests.kits.loghub.hub import LOGSTORE, PROJECT
from tests.kits.pipeline.archived_logstore import (
    ArchivedLogstore,
    Meddling,
    step,
    with_logstore,
)


@pytest.mark.parametrize("seed", range(8))
def test_history_and_tail_are_the_stream(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(14):
            step(logstore, rng)
            assert sorted(logstore.messages()) == sorted(logstore.written)
        low, high = sorted(rng.choices(range(len(logstore.written) + 1), k=2))
        between = {m for m, number in logstore.written.items() if low <= number < high}
        assert set(logstore.messages(start=low, end=high)) == between

    with_logstore(tmp_path, work)


@pytest.mark.parametrize("seed", range(6))
def test_history_and_tail_are_the_stream_whatever_happens_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)

    def work(logstore: ArchivedLogstore) -> None:
        meddling = Meddling(logstore, rng, monkeypatch)
        for _ in range(6):
            for _ in range(3):
                step(logstore, rng)
            before = set(logstore.written)
            with meddling.on():
                found = logstore.messages()
            assert len(found) == len(set(found))
            assert before <= set(found) <= set(logstore.written)

    with_logstore(tmp_path, work)


def test_what_is_archived_and_truncated_while_it_is_read_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(10)
        logstore.archive(is_truncating=True)
        logstore.put(10)

        def looked(*given: Any, **more: Any) -> Any:
            found = reader.look(*given, **more)
            logstore.put(5)  # comes later than the reader
            assert logstore.archive(is_truncating=True).truncated
            return found

        monkeypatch.setattr(raftwood.pipeline.read, "look", looked)
        assert sorted(logstore.messages()) == sorted(f"m{number}" for number in range(20))

    with_logstore(tmp_path, work)


def test_positions_cut_history_and_tail_alike(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(6):
            logstore.put(3)
        logstore.archive(is_truncating=True)
        for _ in range(3):
            logstore.put(3)
        table = logstore.read(columns=["position", "message"])
        places = [int.from_bytes(each, "big") for each in table.column("position").to_pylist()]
        messages = table.column("message").to_pylist()
        for cut in sorted({*places, places[-1] + 1}):
            before = logstore.messages(end={0: cut})
            after = logstore.messages(start={0: cut})
            assert before + after == messages
            assert len(before) == sum(place < cut for place in places)
        with pytest.raises(RecordsFreed, match="begins at"):
            logstore.messages(start={0: 0})

    with_logstore(tmp_path, work, shards=1)


def test_contents_are_cast_alike_from_history_and_tail(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(4)
        logstore.archive(fields=["number int"])
        logstore.put(4, is_arrow=True)
        logstore.archive()
        logstore.put(4)
        columns = ["number int", "time", "contents.number bigint", "nothing double", "message"]
        table = logstore.read(columns=columns)
        assert table.schema.field("number").type == pyarrow.int32()
        assert table.column("number").to_pylist() == list(range(12))
        assert table.column("contents.number").to_pylist() == list(range(12))
        assert table.column("nothing").null_count == 12
        assert [each.timestamp() for each in table.column("time").to_pylist()] == list(range(12))
        whole = logstore.read()
        assert whole.column("contents").to_pylist()[5] == [("message", "m5"), ("number", "5")]
        assert whole.column_names[:5] == ["time", "topic", "source", "tags", "contents"]
        assert logstore.read(engine="pandas", columns=["number int"])["number"].sum() == 66
        assert logstore.read(engine="polars", columns=["number int"])["number"].sum() == 66

    with_logstore(tmp_path, work, shards=1)


def test_what_cannot_be_read_is_so_in_history_as_in_the_tail(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        for is_archived in (True, False):
            logstore.put(2)
            logstore.put_unreadable(b"\xff\xff no LogGroup")
            if is_archived:
                logstore.archive(is_truncating=True, fields=["message int"])
        rows = logstore.read(columns=["message", "raw"]).to_pylist()
        assert [each["message"] for each in rows] == ["m0", "m1", None, "m2", "m3", None]
        assert [each["raw"] is None for each in rows] == [True, True, False] * 2
        assert logstore.messages(mode="DROPMALFORMED") == ["m0", "m1", "m2", "m3"]
        assert logstore.read(columns=["message int"]).column(0).null_count == 6
        dropped = logstore.read(columns=["message int"], mode="DROPMALFORMED")
        assert dropped.num_rows == 0
        with pytest.raises(InvalidInput, match="when it was archived"):
            logstore.read(columns=["number"], mode="FAILFAST")
        with pytest.raises(InvalidInput, match="'m0', which is no int32"):
            logstore.read(columns=["message int"], mode="FAILFAST", end=1)

    with_logstore(tmp_path, work, shards=1)


def test_files_outside_the_time_asked_for_are_not_opened(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        for _ in range(3):
            logstore.put(10)
            logstore.archive(is_truncating=True)
        for folder in sorted(Path(logstore.uri, "data").iterdir())[::2]:
            for file in folder.iterdir():
                file.unlink()
        assert logstore.messages(start="1970-01-01T00:00:10", end=20) == [
            f"m{number}" for number in range(10, 20)
        ]

    with_logstore(tmp_path, work, shards=1)


def test_what_was_freed_before_it_was_archived_is_told_or_skipped(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(2)
        logstore.archive()
        logstore.put(2)
        with logstore.client() as client:
            (group,) = client.groups(PROJECT, LOGSTORE)
            client.delete_group(PROJECT, LOGSTORE, group.name)
            end = client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            client.truncate_shard(PROJECT, LOGSTORE, shard=0, before=end)
        logstore.put(2)
        with pytest.raises(RecordsFreed, match="before they were archived"):
            logstore.messages()
        assert logstore.messages(skips_freed=True) == ["m0", "m1", "m4", "m5"]
        assert logstore.archive(skips_freed=True).gaps == 1
        assert logstore.messages() == ["m0", "m1", "m4", "m5"]

    with_logstore(tmp_path, work, shards=1)


def test_what_cannot_be_asked_for_is_refused() -> None:
    for wrong in (
        {"engine": "excel"},
        {"columns": ["time int"]},
        {"columns": ["status wheel"]},
        {"columns": ["a", "a"]},
        {"start": "yesterday"},
    ):
        with pytest.raises(InvalidInput):
            raftwood.read(
                *("p", "s"), gateways="127.0.0.1:1", access_key="k", access_secret="s", **wrong
            )
