"""The archiver: killed anywhere and run again, it has archived everything once."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import InvalidConfiguration, OutOfRange
from raftwood.loghub.client import LogHubClient
from raftwood.pipeline.archive import files as archive_files
from raftwood.pipeline.archive.archiver import Archiver, group_of
from raftwood.pipeline.archive.files import ArrowFiles
from raftwood.pipeline.archive.manifest import ArchivedFile, ArchiveLog
from raftwood.pipeline.archive.writer import ArrowWriter, WrittenFiles
from raftwood.pipeline.options import SourceOptions
from tests.kits.loghub.hub import LOGSTORE, PROJECT
from tests.kits.pipeline.archive_files_suite import check_files
from tests.kits.pipeline.archived_logstore import ArchivedLogstore, with_logstore


class Killed(BaseException):
    """The process ends here."""


def test_files_by_arrow(tmp_path: Path) -> None:
    check_files(ArrowFiles(str(tmp_path / "with space")))
    check_files(ArrowFiles(f"file://{tmp_path}/by-uri/"))
    with pytest.raises(InvalidConfiguration, match="no file system"):
        ArrowFiles("gopher://lake/x")


def test_files_and_all_folders_that_may_be_new_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(archive_files, "_sync", synced.add)
    made = ArrowFiles(str(tmp_path / "archive"))
    with made.open("data/1/x") as stream:
        stream.write(b"x")
    made.sync(["data/1/x"])
    expected = ["archive/data/1/x", "archive/data/1", "archive/data", "archive", "."]
    assert synced == {str(tmp_path / each) for each in expected}
    made.create("_manifest/a", b"a")
    assert str(tmp_path / "archive/_manifest") in synced


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ArrowWriter, "write"),
        (ArchiveLog, "add"),
        (LogHubClient, "set_checkpoint"),
        (LogHubClient, "truncate_shard"),
        (ArchiveLog, "clean"),
    ],
)
def test_killed_anywhere_nothing_is_lost_or_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_before: bool
) -> None:
    real = getattr(owner, name)

    def dying(*given: Any, **more: Any) -> Any:
        if not is_before:
            real(*given, **more)
        raise Killed

    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(10)
        logstore.archive(is_truncating=True)
        logstore.put(10)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying)
            with pytest.raises(Killed):
                logstore.archive(is_truncating=True)
        assert sorted(logstore.messages()) == sorted(logstore.written)
        logstore.put(5)
        logstore.archive(is_truncating=True)
        assert sorted(logstore.messages()) == sorted(logstore.written)
        logstore.put(5)
        logstore.archive(is_truncating=True)
        assert sorted(logstore.messages()) == sorted(logstore.written)
        manifest = logstore_manifest(logstore)
        assert manifest.rows == len(logstore.written)
        named = {file.path.split("/")[1] for commit in manifest.commits for file in commit.files}
        assert {each.name for each in Path(logstore.uri, "data").iterdir()} == named
        with logstore.client() as client:
            details = client.describe(PROJECT, LOGSTORE)
        assert [each.first for each in details] == [each.next for each in details]

    with_logstore(tmp_path, work)


def logstore_manifest(logstore: ArchivedLogstore) -> Any:
    files = ArrowFiles(logstore.uri)
    return ArchiveLog(files, project=PROJECT, logstore=LOGSTORE).manifest()


class _Overtaken(ArrowWriter):
    """While it writes, another archiver does all of its work."""

    others = 1
    logstore: ArchivedLogstore

    def write(self, ranges: Sequence[Any], *, number: int) -> WrittenFiles:
        written = super().write(ranges, number=number)
        if self.others:
            self.others -= 1
            self.logstore.put(3)
            assert self.logstore.archive(is_truncating=True).rows
            self.logstore.put(3)
        return written


def test_of_two_archivers_at_once_one_commits_a_range(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(10)
        files = ArrowFiles(logstore.uri)
        writer = _Overtaken(files, SourceOptions(access=logstore.access))
        writer.logstore = logstore
        archive = ArchiveLog(files, project=PROJECT, logstore=LOGSTORE)
        Archiver(logstore.access, archive, writer).run()
        assert logstore_manifest(logstore).rows == 16
        assert sorted(logstore.messages()) == sorted(logstore.written)

    with_logstore(tmp_path, work)


class _Swept(ArrowWriter):
    """What it is writing goes away in the middle, once."""

    others = 1
    logstore: ArchivedLogstore

    def _write_range(
        self, folder: str, shard: int, batches: Iterator[Any]
    ) -> Iterator[ArchivedFile]:
        yield from super()._write_range(folder, shard, batches)
        if self.others:
            self.others -= 1
            assert self.logstore.archive(is_truncating=True).rows


def test_an_archiver_goes_on_whose_files_another_one_removes(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(10)
        files = ArrowFiles(logstore.uri)
        writer = _Swept(files, SourceOptions(access=logstore.access))
        writer.logstore = logstore
        archive = ArchiveLog(files, project=PROJECT, logstore=LOGSTORE)
        assert Archiver(logstore.access, archive, writer).run().rows == 10
        assert sorted(logstore.messages()) == sorted(logstore.written)
        # What is wrong for another reason is told.
        data = Path(logstore.uri, "data")
        data.rename(tmp_path / "elsewhere")
        data.touch()
        logstore.put(1)
        with pytest.raises(OSError, match="data"):
            logstore.archive()

    with_logstore(tmp_path, work)


def test_who_still_reads_holds_the_log(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(4)
        with logstore.client() as client:
            client.create_group(PROJECT, LOGSTORE, "slow")
            assert logstore.archive(is_truncating=True).truncated == {}
            end = client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            client.set_checkpoint(PROJECT, LOGSTORE, "slow", shard=0, position=end)
            logstore.put(4)
            report = logstore.archive(is_truncating=True)
            assert report.truncated == {0: end}
            assert report.archived[0] > end
            names = [each.name for each in client.groups(PROJECT, LOGSTORE)]
            assert group_of(logstore.uri) in names
        assert logstore.archive().rows == 0

    with_logstore(tmp_path, work, shards=1)


def test_an_archive_is_of_one_logstore_and_does_not_skip_in_silence(tmp_path: Path) -> None:
    def work(logstore: ArchivedLogstore) -> None:
        logstore.put(2)
        logstore.archive(group="archive-mine")
        logstore.put(2)
        with logstore.client() as client:
            client.delete_group(PROJECT, LOGSTORE, "archive-mine")
            end = client.cursor(PROJECT, LOGSTORE, shard=0, at="end")
            client.truncate_shard(PROJECT, LOGSTORE, shard=0, before=end)
        with pytest.raises(OutOfRange, match="let it be skipped"):
            logstore.archive()
        other = ArchiveLog(ArrowFiles(logstore.uri), project=PROJECT, logstore="other")
        with pytest.raises(InvalidConfiguration, match="a folder of its own"):
            other.manifest()

    with_logstore(tmp_path, work, shards=1)


def test_an_archive_has_one_group_by_whichever_name_it_is_reached() -> None:
    assert group_of("s3a://lake/access/") == group_of("s3://lake/access")
    assert group_of("s3://lake/access") != group_of("s3://lake2/access")
    assert group_of("s3://lake/access").startswith("archive-access-")
