"""The archive by Spark: its files, its truth under truncation, and what is read of it."""

from pathlib import Path
from typing import Any

import pytest

import raftwood
from raftwood.loghub.client import LogHubClient
from raftwood.pipeline.archive.archiver import Archiver
from raftwood.pipeline.archive.manifest import ArchiveLog
from raftwood.pipeline.archive.spark import HadoopFiles
from raftwood.pipeline.options import StreamAccess, access_to
from tests.kits.pipeline.archive_files_suite import check_files
from tests.kits.pipeline.kit import PROJECT, Hub


def access_of(hub: Hub, logstore: str) -> StreamAccess:
    part = hub.standalone.loghub
    return access_to(
        f"{PROJECT}/{logstore}",
        gateways=part.native,
        access_key=part.access_key,
        access_secret=part.access_secret,
    )


def read(hub: Hub, logstore: str, uri: str, **options: Any) -> Any:
    access = access_of(hub, logstore)
    return raftwood.read(
        PROJECT,
        logstore,
        archive=uri,
        gateways=",".join(access.gateways),
        access_key=access.access_key,
        access_secret=access.access_secret,
        **options,
    )


def test_files_by_hadoop(hub: Hub, tmp_path: Path) -> None:
    check_files(HadoopFiles(hub.spark, str(tmp_path / "here")))
    check_files(HadoopFiles(hub.spark, f"file:{tmp_path}/by-uri"))


def test_history_by_parquet_and_the_tail_are_the_stream(hub: Hub, tmp_path: Path) -> None:
    logstore, uri = hub.logstore(), str(tmp_path / "archive")
    archiver = Archiver.with_spark(
        hub.spark, access_of(hub, logstore), uri, fields=["n int"], is_truncating=True
    )
    hub.fill(logstore, range(100))
    report = archiver.run()
    assert (report.rows, report.files, len(report.truncated)) == (100, 2, 2)
    hub.client.split_shard(PROJECT, logstore, shard=0)
    hub.fill(logstore, range(100, 200))
    assert archiver.run().rows == 100
    hub.fill(logstore, range(200, 250))
    frame = read(hub, logstore, uri, engine="spark", columns=["n int", "text"])
    hub.fill(logstore, range(250, 260))
    archiver.run()  # truncates what the frame is still to read
    found = sorted((row.n, row.text) for row in frame.collect())
    assert found == [(number, f"text {number}") for number in range(250)]
    whole = read(hub, logstore, uri, columns=["n int", "time", "position", "shard", "contents"])
    assert sorted(whole.column("n").to_pylist()) == list(range(260))
    assert dict(whole.column("contents").to_pylist()[0]).keys() == {"n", "text"}
    times = sorted(whole.column("time").to_pylist())
    between = {"start": times[70], "end": times[230]}
    by_arrow = read(hub, logstore, uri, columns=["n int"], **between).column("n").to_pylist()
    by_spark = read(hub, logstore, uri, engine="spark", columns=["n int"], **between).collect()
    assert sorted(by_arrow) == sorted(row.n for row in by_spark)
    assert len(by_arrow) == sum(times[70] <= each < times[230] for each in times)


def test_a_stream_is_read_from_the_archive_on_and_holds_what_it_has_not_read(
    hub: Hub, tmp_path: Path
) -> None:
    logstore, uri = hub.logstore(), str(tmp_path / "archive")
    archiver = Archiver.with_spark(
        hub.spark, access_of(hub, logstore), uri, is_truncating=True, partitions_min=4
    )
    hub.fill(logstore, range(60))
    archiver.run()
    hub.client.split_shard(PROJECT, logstore, shard=1)
    hub.fill(logstore, range(60, 120))
    archiver.run()
    hub.fill(logstore, range(120, 150))

    def run() -> list[int]:
        frame = hub.stream(
            logstore,
            "n int",
            {"archive": uri, "group": "query", "maxOffsetsPerTrigger": "50"},
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return sorted(row.n for row in hub.spark.read.parquet(str(tmp_path / "out")).collect())

    assert run() == list(range(150))
    hub.fill(logstore, range(150, 160))
    archiver.run()
    held = required(hub.client, logstore)
    assert held <= {"query"}, held
    assert run() == list(range(160))


def required(client: LogHubClient, logstore: str) -> set[str]:
    """Who holds records."""
    return {
        each.required_by
        for each in client.describe(PROJECT, logstore)
        if each.required is not None and each.first != each.next
    }


@pytest.mark.needs("delta")
def test_a_delta_table_has_each_record_once_wherever_the_archiver_is_killed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logstore, uri = hub.logstore(), str(tmp_path / "archive")
    archiver = Archiver.with_spark(
        hub.spark, access_of(hub, logstore), uri, format="delta", is_truncating=True
    )
    hub.fill(logstore, range(20))
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveLog, "add", _killed)  # the table has it, the manifest does not
        with pytest.raises(KeyboardInterrupt):
            archiver.run()
    hub.fill(logstore, range(20, 40))
    assert sorted(numbers(hub, logstore, uri)) == list(range(40))
    assert archiver.run().rows == 40
    hub.fill(logstore, range(40, 50))
    assert sorted(numbers(hub, logstore, uri)) == list(range(50))
    by_spark = read(hub, logstore, uri, engine="spark", columns=["n int"])
    assert sorted(row.n for row in by_spark.collect()) == list(range(50))
    assert hub.spark.read.format("delta").load(f"{uri}/table").count() == 40
    # Columns of their own from now on: the table is one still.
    Archiver.with_spark(
        hub.spark, access_of(hub, logstore), uri, format="delta", fields=["n int"]
    ).run()
    hub.fill(logstore, range(50, 60))
    for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST"):
        frame = read(hub, logstore, uri, engine="spark", columns=["n int"], mode=mode)
        assert sorted(row.n for row in frame.collect()) == list(range(60))
    frame = read(hub, logstore, uri, engine="spark", columns=["text int"], mode="FAILFAST")
    with pytest.raises(Exception, match=r"cannot be read|which is no int"):
        frame.collect()


def _killed(*_: object, **__: object) -> bool:
    raise KeyboardInterrupt


def numbers(hub: Hub, logstore: str, uri: str) -> list[int]:
    return list(read(hub, logstore, uri, columns=["n int"]).column("n").to_pylist())
