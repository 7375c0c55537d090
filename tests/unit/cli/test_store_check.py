"""`raftwood store check` on real folders of every role, whole and damaged in each class of file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kits.releases.packing import unpack
from tests.kits.running import run

from raftwood.cli.command_line import run as raftwood
from raftwood.disk import inspection
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings, Run
from raftwood.disk.store import DataFolder, Store

FIXTURES = Path(__file__).parents[2] / "fixtures/0.1.0"
RAFT, BOOKIE, NODE, SPOOL, METASTORE = (
    "log-store/data/store",
    "bookies/data/bookie-1",
    "zeppelin-node/data/kv",
    "shipper/spool/0",
    "metastore/metastore",
)
ENGINE = f"{NODE}/engines/1-1-1"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of every role, opened and closed once, so that their logs have a HORIZON."""
    folder = tmp_path_factory.mktemp("roles")
    for role in (RAFT, BOOKIE, NODE, SPOOL, METASTORE):
        name = role.partition("/")[0]
        unpack(FIXTURES / name / "data.tar.xz", folder / name)
        run(_open_and_close(folder / role))
    return folder


async def _open_and_close(path: Path) -> None:
    identity = json.loads((path / "IDENTITY").read_text())["identity"]
    settings = LogSettings(segment_bytes=1 << 20)
    with real_environment() as environment:
        store = await Store.open(
            environment,
            str(path),
            cluster=identity["cluster"],
            store=identity["store"],
            settings=settings,
        )
        await store.close()


@pytest.fixture
def folders(unpacked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unpacked, tmp_path / "roles"))


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = raftwood(["store", "check", str(path)])
    return status, capsys.readouterr().out


def flip(path: Path, share: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int((len(data) - 1) * share)] ^= 4
    path.write_bytes(data)


def flip_first_slot(path: Path) -> None:
    flip(path, share=0.002)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("role", "name", "beside"),
    [
        (RAFT, "store 1 of cluster standalone", "7 snapshots"),
        (BOOKIE, "bookie embedded-1", "4 ledgers"),
        (NODE, "kv node 68964c079b7179e5", "6 partitions, 31 keys"),
        (SPOOL, "a slot of a shipper's spool", "1 batches"),
        (METASTORE, "a metastore in one folder", "a snapshot of 1 pieces"),
    ],
)
def test_a_whole_folder_is_intact_and_stays_as_it_is(
    unpacked: Path, role: str, name: str, beside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = unpacked / role
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    status, output = check(path, capsys)
    assert status == 0, output
    assert output.startswith(f"{name} in {path}\n")
    assert f"beside the log: {beside}" in output
    assert "intact: " in output
    assert "left over" not in output
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        (f"{RAFT}/IDENTITY", flip, "IDENTITY"),
        (f"{RAFT}/IDENTITY", delete, "it is missing"),
        (f"{RAFT}/log/HORIZON", zero, "nothing tells how far the log went"),
        (f"{RAFT}/log/HORIZON", delete, "nothing tells how far the log went"),
        (f"{RAFT}/log/0000000001.segment", delete, "the segment is missing"),
        (f"{RAFT}/log/0000000002.segment", delete, "the segment is missing"),
        (f"{RAFT}/snapshots/6-12.snapshot", flip, "at offset"),
        (f"{RAFT}/snapshots/6-12.snapshot", cut, "it ends at offset"),
        (f"{RAFT}/snapshots/6-12.snapshot", zero, "does not begin as a snapshot does"),
        (f"{RAFT}/snapshots/6-12.snapshot", delete, "of group 6 at entry 12 is missing"),
        (f"{RAFT}/snapshots", delete, "of group 6 at entry 12 is missing"),
        (f"{BOOKIE}/log/0000000002.segment", delete, "the segment is missing"),
        (f"{BOOKIE}/log/0000000001.segment", zero, "0000000001.segment"),
        (f"{NODE}/log/0000000002.segment", delete, "the segment is missing"),
        (f"{ENGINE}/000008.sst", flip, "block checksum mismatch"),
        (f"{ENGINE}/000008.sst", delete, "000008.sst"),
        (f"{ENGINE}/CURRENT", delete, "CURRENT"),
        (f"{ENGINE}/MANIFEST-000005", cut, "was flushed"),
        (f"{ENGINE}/RAFTWOOD-KV", flip, "RAFTWOOD-KV"),
        (f"{SPOOL}/log/0000000002.segment", delete, "the segment is missing"),
        (f"{METASTORE}/log/0000000002.segment", delete, "the segment is missing"),
    ],
)
def test_damage_to_each_class_of_file_is_named_with_its_remedy(
    folders: Path,
    file: str,
    damage: Callable[[Path], None],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(folders / file)
    role = "/".join(file.split("/")[: 2 if file.startswith(METASTORE) else 3])
    status, output = check(folders / role, capsys)
    assert status == 1, output
    assert any(line.startswith("DAMAGED: ") and reason in line for line in output.splitlines()), (
        output
    )
    assert "remedy: " in output
    assert "intact" not in output


def test_a_deleted_newest_segment_that_holds_data_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        with real_environment() as environment:
            settings = LogSettings(segment_bytes=16 << 10)
            store = await Store.open(
                environment, f"{tmp_path}/s", cluster="c", store=1, settings=settings
            )
            for number in range(1, 9):
                await store.log.commit(Run(1, 1, number, 1, bytes(4000)))
            await store.close()

    run(fill())
    assert check(tmp_path / "s", capsys)[0] == 0
    segments = sorted((tmp_path / "s/log").glob("*.segment"))
    newest = [each for each in segments if each.read_bytes()[64:].strip(b"\0")][-1]
    newest.unlink()
    status, output = check(tmp_path / "s", capsys)
    assert status == 1
    assert f"DAMAGED: {newest} at offset 0: the segment is missing" in output


def test_files_that_nothing_refers_to_are_no_damage(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [
        folders / f"{RAFT}/snapshots/9-1.snapshot",
        folders / f"{RAFT}/snapshots/3.temporary",
        folders / f"{RAFT}/IDENTITY.temporary",
        folders / f"{RAFT}/log/preparing.temporary",
    ]
    for path in left:
        path.write_bytes(b"of a crash")
    status, output = check(folders / RAFT, capsys)
    assert status == 0
    for path in left:
        assert f"left over: {path}: nothing refers to it" in output
    shutil.copytree(folders / ENGINE, folders / f"{NODE}/engines/9-9-9")
    status, output = check(folders / NODE, capsys)
    assert status == 0
    assert f"left over: {folders / NODE}/engines/9-9-9" in output


@pytest.mark.parametrize("damage", [flip_first_slot, cut])
def test_a_horizon_that_lost_one_of_its_slots_is_told_and_is_no_damage(
    folders: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    horizon = folders / f"{RAFT}/log/HORIZON"
    damage(horizon)
    status, output = check(folders / RAFT, capsys)
    assert status == 0, output
    assert f"note: {horizon}: one of its two slots is bad" in output
    run(_open_and_close(folders / RAFT))
    assert "note: " not in check(folders / RAFT, capsys)[1]


def test_an_identity_from_before_the_log_in_use_is_told(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folders / RAFT

    async def take_another_log() -> None:
        with real_environment() as environment:
            folder = await DataFolder.open_existing(environment, str(path))
            shutil.copytree(path / "log", path / "log-2")
            await folder.use_next_log()
            await folder.close()

    older = (path / "IDENTITY").read_bytes()
    run(take_another_log())
    status, output = check(path, capsys)
    assert (status, "note: " in output, "IN-USE" in output) == (0, False, False)
    (path / "IDENTITY").write_bytes(older)
    status, output = check(path, capsys)
    assert status == 0, output
    assert f"note: {path}/IDENTITY: it is an older copy: {path}/log-2 took" in output


def test_a_lost_engine_is_damage_only_where_the_binlog_cannot_make_it_again(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delete(folders / ENGINE)
    status, output = check(folders / NODE, capsys)
    assert status == 0, output  # its binlog begins at record 1


def test_a_folder_of_several_stores_is_checked_one_by_one(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delete(folders / "bookies/data/bookie-1/log/0000000002.segment")
    status, output = check(folders / "bookies", capsys)
    assert status == 1
    assert output.count("intact: ") == 2
    assert "DAMAGED: " in output.partition("bookie embedded-2")[0]
    assert raftwood(["store", "check", str(folders / "bookies"), "--format", "json"]) == 1
    reports = json.loads(capsys.readouterr().out)
    assert [bool(report["damages"]) for report in reports] == [True, False, False]


def test_a_folder_of_too_many_is_refused_rather_than_checked_in_part(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "FOLDERS_MAX", 2)
    assert raftwood(["store", "check", str(folders / "bookies")]) == 2
    assert "name one of the folders in it" in capsys.readouterr().err
