"""A table is backed up, interrupted, gone on with, damaged and restored."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import AlreadyExists, Conflict, InvalidInput, NotFound, StoreDamaged
from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin import backup_format as form
from raftwood.zeppelin.backup import BackupProgress, back_up
from raftwood.zeppelin.backup_format import BackupFolder, TableManifest
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.restore import RestoreProgress, restore, verify
from tests.kits.running import run
from tests.kits.zeppelin.static_cluster import StaticCluster, listening
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

KEYS = [f"key{number}" for number in range(1_000)]
SMALL: dict[str, Any] = {"file_bytes": 100, "page_bytes": 3_000}
"""A page is a file."""
Scenario = Callable[[AsyncKv, StaticCluster, Path], Awaitable[None]]


@asynccontextmanager
async def client_of(cluster: StaticCluster) -> AsyncIterator[AsyncKv]:
    async with (
        listening(cluster),
        await AsyncKv.connect(
            cluster.addresses, user=WRITER, password=PASSWORD, timeout_ms=5_000
        ) as kv,
    ):
        yield kv


def on_table(scenario: Scenario, folder: Path) -> None:
    async def main() -> None:
        cluster = StaticCluster(partitions=4)
        async with client_of(cluster) as kv:
            await kv.set_many((key, key * 20) for key in KEYS)
            await scenario(kv, cluster, folder)

    run(main())


async def restored(folder: Path, *, partitions: int = 7, **options: Any) -> StaticCluster:
    """Another table that has it."""
    cluster = StaticCluster(("x", "y"), partitions=partitions)
    async with client_of(cluster) as kv:
        await put_back(kv, folder, **options)
    return cluster


async def put_back(kv: AsyncKv, folder: Path, **options: Any) -> RestoreProgress:
    with real_environment() as environment:
        return await restore(kv, BackupFolder(str(folder)), environment.clock, **options)


async def interrupted(kv: AsyncKv, folder: Path, *, after_pairs: int) -> None:
    """A backup that ends in the midst of it."""
    enough = asyncio.Event()

    def told(progress: BackupProgress) -> None:
        if progress.pairs >= after_pairs:
            enough.set()

    async with asyncio.TaskGroup() as group:
        backing = group.create_task(
            back_up(
                kv,
                BackupFolder(str(folder)),
                parallel=1,
                bytes_per_s=400_000,
                told=told,
                **SMALL,
            )
        )
        await enough.wait()
        backing.cancel()


def positions(manifest: TableManifest) -> list[tuple[int, int]]:
    return [
        (each.about.position.epoch, each.about.position.sequence) for each in manifest.partitions
    ]


def test_a_table_is_the_same_in_one_with_other_partitions(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, folder: Path) -> None:
        before = cluster.values()
        seen: list[BackupProgress] = []
        manifest = await back_up(kv, BackupFolder(str(folder)), told=seen.append)
        assert manifest.pairs == len(KEYS)
        assert positions(manifest) == [(each.epoch, each.last_sequence) for each in cluster.stores]
        assert (seen[-1].finished, seen[-1].pairs) == (4, len(KEYS))
        assert cluster.engines.folders == {}
        await kv.set_many((key, "later") for key in KEYS)
        assert (await restored(folder)).values() == before
        assert (await verify(BackupFolder(str(folder)))) == manifest
        with pytest.raises(AlreadyExists, match="finished"):
            await back_up(kv, BackupFolder(str(folder)))

    on_table(scenario, tmp_path)


def test_an_interrupted_backup_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, folder: Path) -> None:
        before = cluster.values()
        await interrupted(kv, folder, after_pairs=len(KEYS) // 3)
        with pytest.raises(NotFound, match="interrupted"):
            await restored(folder)
        kept = {each.name for each in (folder / "data").iterdir()}
        assert len(kept) > 4
        (left,) = cluster.engines.folders
        manifest = await back_up(kv, BackupFolder(str(folder)), **SMALL)
        assert kept <= {os.path.basename(each.name) for each in manifest.files}
        assert any(each.about.id in left for each in manifest.partitions)
        assert cluster.engines.folders == {}
        assert (await restored(folder)).values() == before

    on_table(scenario, tmp_path)


def test_a_partition_whose_checkpoint_is_gone_is_begun_anew(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, folder: Path) -> None:
        checkpoint = await kv.checkpoint(2)
        begun = form.PartitionBackup(about=checkpoint.about, cursor=b"\x10key5")
        backup = BackupFolder(str(folder))
        await backup.write(form.partition_name(2), msgspec.json.encode(begun))
        await checkpoint.end()
        manifest = await back_up(kv, backup)
        assert manifest.partitions[2].about.id != checkpoint.about.id
        assert manifest.pairs == len(KEYS)
        assert (await restored(folder, partitions=1)).values() == cluster.values()

    on_table(scenario, tmp_path)


def test_the_beginning_of_another_tables_backup_is_not_gone_on_with(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        async with await kv.checkpoint(1) as checkpoint:
            about = msgspec.structs.replace(checkpoint.about, incarnation=77)
        backup = BackupFolder(str(folder))
        begun = form.PartitionBackup(about=about)
        await backup.write(form.partition_name(1), msgspec.json.encode(begun))
        with pytest.raises(Conflict, match="another table"):
            await back_up(kv, backup)

    on_table(scenario, tmp_path)


def test_what_others_put_into_a_folder_leads_nowhere_else(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        backup = BackupFolder(str(folder / "backup"))
        precious = folder / "precious"
        precious.write_text("stays")
        async with await kv.checkpoint(1) as checkpoint:
            about = checkpoint.about
        file = form.TableBackupFile(name="../precious", bytes=1, checksum="", pairs=1)
        begun = form.PartitionBackup(about=about, files=(file,))
        await backup.write(form.partition_name(1), msgspec.json.encode(begun))
        with pytest.raises(StoreDamaged, match="other names"):
            await back_up(kv, backup)
        assert precious.exists()
        # Nobody is given the password because a file says so.
        asked: list[object] = []
        server = await asyncio.start_server(lambda *_: asked.append(_), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        elsewhere = msgspec.structs.replace(about, address=f"127.0.0.1:{port}")
        begun = form.PartitionBackup(about=elsewhere)
        await backup.write(form.partition_name(1), msgspec.json.encode(begun))
        assert (await back_up(kv, backup)).pairs == len(KEYS)
        server.close()
        assert asked == []

    on_table(scenario, tmp_path)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        manifest = await back_up(kv, BackupFolder(str(folder)), **SMALL)
        missing, damaged, cut = [folder / each.name for each in manifest.files[:3]]
        missing.unlink()
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        cut.write_bytes(cut.read_bytes()[:-1])
        with pytest.raises(StoreDamaged, match=r"^3 of \d+ files") as raised:
            await verify(BackupFolder(str(folder)))
        for file in (missing, damaged, cut):
            assert file.name in raised.value.message
        with pytest.raises((StoreDamaged, NotFound), match=r"rwzb is (damaged|not there)"):
            await restored(folder)
        text = (folder / form.MANIFEST).read_text()
        (folder / form.MANIFEST).write_text(text.replace(f'"pairs": {len(KEYS)}', '"pairs": 1'))
        with pytest.raises(StoreDamaged, match="checksum"):
            await restored(folder)

    on_table(scenario, tmp_path)


def test_what_has_expired_is_passed_over_and_what_ends_ends_as_it_would(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        await kv.set("soon", "gone", px=300)
        await kv.set("late", "there", px=3_600_000)
        manifest = await back_up(kv, BackupFolder(str(folder)))
        assert manifest.pairs == len(KEYS) + 2
        await asyncio.sleep(0.4)
        other = StaticCluster(partitions=2)
        async with client_of(other) as copy:
            done = await put_back(copy, folder)
            assert (done.restored, done.expired) == (len(KEYS) + 1, 1)
            assert await copy.get("soon") is None
            assert 3_500_000 < (await copy.ttl_ms("late") or 0) <= 3_600_000
            assert await copy.ttl_ms(KEYS[0]) == -1

    on_table(scenario, tmp_path)


def test_a_table_with_keys_is_not_written_over_unless_that_is_said(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        await back_up(kv, BackupFolder(str(folder)))
        other = StaticCluster(partitions=2)
        async with client_of(other) as copy:
            await copy.set("mine", "1")
            with pytest.raises(Conflict, match="has keys already"):
                await put_back(copy, folder)
            assert other.values() == {b"mine": b"1"}
            await put_back(copy, folder, may_have_keys=True)
            assert len(other.values()) == len(KEYS) + 1

    on_table(scenario, tmp_path)


def test_an_interrupted_restore_passes_over_what_is_done(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, folder: Path) -> None:
        manifest = await back_up(kv, BackupFolder(str(folder)))
        notes = folder / "notes"
        lost = folder / manifest.files[3].name
        data = lost.read_bytes()
        lost.unlink()
        other = StaticCluster(partitions=2)
        async with client_of(other) as copy:
            with pytest.raises(NotFound, match="not there"):
                await put_back(copy, folder, progress_file=str(notes), parallel=1)
            lost.write_bytes(data)
            writes = sum(store.last_sequence for store in other.stores)
            done = await put_back(copy, folder, progress_file=str(notes))
            assert done.restored == len(KEYS)
            # The keys of one partition were of one before, too.
            assert sum(store.last_sequence for store in other.stores) == writes + 1
            assert other.values() == cluster.values()
            assert not notes.exists()
            notes.write_text('{"manifest": "another", "incarnation": 1}')
            with pytest.raises(InvalidInput, match="another restore"):
                await put_back(copy, folder, progress_file=str(notes))

    on_table(scenario, tmp_path)


def test_a_restore_that_others_write_into_is_not_called_whole(tmp_path: Path) -> None:
    async def scenario(kv: AsyncKv, _: StaticCluster, folder: Path) -> None:
        await back_up(kv, BackupFolder(str(folder)))
        other = StaticCluster(partitions=2)
        async with client_of(other) as copy:
            loop = asyncio.get_running_loop()
            tasks: list[asyncio.Task[bool]] = []

            def told(progress: RestoreProgress) -> None:
                if progress.finished == 1 and not tasks:
                    tasks.append(loop.create_task(copy.set("another's", "1")))

            with pytest.raises(Conflict, match="somebody else"):
                await put_back(copy, folder, told=told, parallel=1)

    on_table(scenario, tmp_path)
