"""Snapshots of a store: saved, read, listed, removed; stopped, failing and full disks."""

import asyncio
import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kits.disk.log_in_memory import WatchedFiles, run
from tests.kits.raft.snapshots import (
    FOLDER,
    PIECE_BYTES,
    contents,
    meta_of,
    names,
    never,
    raw,
    recover,
    save,
    write_file,
)
from tests.kits.running import run as run_for_real

from raftwood.base import files as seam
from raftwood.base.errors import (
    AlreadyExists,
    DiskFull,
    InvalidName,
    NotFound,
    OutOfRange,
    StoreDamaged,
    StoreError,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.files import Operation, perform
from raftwood.disk.real_environment import ThreadFiles
from raftwood.raft import snapshot_format
from raftwood.raft.snapshot_files import RAW_BYTES_MAX, ExtraFileList, SnapshotFiles
from raftwood.raft.snapshot_format import CHUNK_BYTES_MAX, META_BYTES_MAX, SnapshotMeta
from raftwood.testing import ImmediateFiles
from raftwood.testing.file_system import LoseAll

CHUNKS = [b"first", b"", b"x" * 700, b"last"]
EXTRA = {"table.sst": b"t" * 900, "empty": b""}


def _scenario(body: Callable[[ImmediateFiles], Any]) -> ImmediateFiles:
    files = ImmediateFiles()
    run(body(files))
    return files


def test_what_was_saved_is_read_back_also_after_a_start() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        stored = await save(snapshots, files, meta_of(), CHUNKS, EXTRA)
        for each in (snapshots, await recover(files)):
            assert each.stored() == [stored]
            assert (stored.group, stored.index, stored.term) == (1, 10, 3)
            async with await each.open(1, 10) as reader:
                assert reader.meta == meta_of()
                assert await contents(reader, files) == (CHUNKS, EXTRA)
                assert len(names(files)) == 1 + len(EXTRA)
            assert names(files) == ["1-10.snapshot"]

    _scenario(scenario)


def test_a_snapshot_may_be_empty() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        await save(snapshots, files, meta_of(), [])
        async with await snapshots.open(1, 10) as reader:
            assert await contents(reader, files) == ([], {})

    _scenario(scenario)


def test_the_first_chunk_is_taken_by_the_call_itself() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        state = ["old"]

        def chunks() -> Iterator[bytes]:
            seen = state[0]
            yield seen.encode()
            yield seen.encode()

        saving = asyncio.create_task(snapshots.save(meta_of(), chunks(), ExtraFileList(), never))
        state[0] = "new"
        await saving
        async with await snapshots.open(1, 10) as reader:
            assert (await contents(reader, files))[0] == [b"old", b"old"]

    _scenario(scenario)


def test_memory_and_turns_are_bounded_whatever_the_chunks_are() -> None:
    largest = 0

    def watch(operation: Operation) -> None:
        nonlocal largest
        if isinstance(operation, seam.Write):
            largest = max(largest, sum(map(len, operation.buffers)), len(operation.buffers))

    async def scenario(files: WatchedFiles) -> None:
        snapshots = await SnapshotFiles.recover(files, FOLDER)
        await save(snapshots, files, meta_of(), [b"x" * 1000] * 3000)
        assert largest < (1 << 20) + 2000
        before = files.submitted
        await save(snapshots, files, meta_of(index=11), [b"y"] * 3000)
        assert files.submitted - before > 10

    run(scenario(WatchedFiles(watch)))


def test_a_large_save_is_synced_as_it_goes() -> None:
    unsynced = most = 0

    def watch(operation: Operation) -> None:
        nonlocal unsynced, most
        if isinstance(operation, seam.Write):
            unsynced += sum(map(len, operation.buffers))
            most = max(most, unsynced)
        elif isinstance(operation, seam.DataSync):
            unsynced = 0

    async def scenario(files: WatchedFiles) -> None:
        snapshots = await recover(files)
        await save(snapshots, files, meta_of(), [b"x" * PIECE_BYTES] * 100)
        assert most < 10 * 2 * PIECE_BYTES

    run(scenario(WatchedFiles(watch)))


@pytest.mark.parametrize("turn", range(6))
def test_a_stopped_save_leaves_nothing(turn: int) -> None:
    closed: list[bool] = []

    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        asked = 0

        def stopped() -> bool:
            nonlocal asked
            asked += 1
            return asked > turn

        def chunks() -> Iterator[bytes]:
            try:
                for _ in range(4):
                    yield b"x" * 300
                extra.add("file", "/data/file")
            finally:
                closed.append(True)

        extra = ExtraFileList()
        await write_file(files, "/data/file", b"f")
        assert await snapshots.save(meta_of(), chunks(), extra, stopped) is None
        assert (names(files), snapshots.stored(), closed) == ([], [], [True])

    _scenario(scenario)


def test_a_save_that_is_cancelled_at_any_moment_leaves_nothing_or_a_whole_snapshot() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        kept = 0
        for turns in range(40):
            index = turns + 1
            task = asyncio.create_task(save(snapshots, files, meta_of(index=index), CHUNKS))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            kept += not task.cancelled()
            assert len(snapshots.stored()) == len(names(files)) == kept
        assert 5 < kept < 35

    _scenario(scenario)


def test_an_error_of_the_state_machine_leaves_nothing() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)

        def chunks() -> Iterator[bytes]:
            yield b"x" * 900
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"):
            await snapshots.save(meta_of(), chunks(), ExtraFileList(), never)
        assert names(files) == []

    _scenario(scenario)


@pytest.mark.parametrize("room", [0, 300, 1200])
def test_a_full_disk_leaves_nothing_and_is_told(room: int) -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        files.file_system.capacity_bytes = room
        with pytest.raises(DiskFull, match=r"temporary.*free space"):
            await save(snapshots, files, meta_of(), [b"x" * 500] * 3)
        assert names(files) == []
        files.file_system.capacity_bytes = None
        await save(snapshots, files, meta_of(), CHUNKS)

    _scenario(scenario)


@pytest.mark.parametrize(
    "kind", [seam.Open, seam.Write, seam.DataSync, seam.Rename, seam.SyncDirectory]
)
def test_a_failing_disk_leaves_nothing_and_is_told(kind: type) -> None:
    failing: list[type] = []

    def watch(operation: Operation) -> None:
        if type(operation) in failing:
            raise OSError(errno.EIO, "broken")

    async def scenario(files: WatchedFiles) -> None:
        snapshots = await recover(files)
        failing.append(kind)
        with pytest.raises(StoreError, match="check the disk"):
            await snapshots.save(meta_of(), iter(CHUNKS), ExtraFileList(), never)
        assert (names(files), snapshots.stored()) == ([], [])
        failing.clear()
        await save(snapshots, files, meta_of(), CHUNKS)

    run(scenario(WatchedFiles(watch)))


def test_a_file_that_cannot_be_removed_goes_at_the_next_start() -> None:
    failing: list[type] = [seam.Unlink]

    def watch(operation: Operation) -> None:
        if type(operation) in failing:
            raise OSError(errno.EIO, "broken")

    async def scenario(files: WatchedFiles) -> None:
        snapshots = await recover(files)
        assert await snapshots.save(meta_of(), iter(CHUNKS), ExtraFileList(), lambda: True) is None
        assert names(files) == ["1.temporary"]
        failing.clear()
        await recover(files)
        assert names(files) == []

    run(scenario(WatchedFiles(watch)))


def test_a_snapshot_is_never_replaced() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        await save(snapshots, files, meta_of(), CHUNKS)
        with pytest.raises(AlreadyExists):
            await save(snapshots, files, meta_of(), [b"other"])
        with pytest.raises(AlreadyExists):
            await snapshots.begin_receive(group=1, index=10, term=3, size=1, sender=2)
        both = [
            asyncio.create_task(save(snapshots, files, meta_of(index=11), CHUNKS)) for _ in range(2)
        ]
        await asyncio.wait(both)
        assert sorted(type(task.exception()).__name__ for task in both) == [
            "AlreadyExists",
            "NoneType",
        ]
        assert names(files) == ["1-10.snapshot", "1-11.snapshot"]

    _scenario(scenario)


def test_removed_snapshots_are_gone() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        for group, index in ((1, 10), (1, 20), (2, 5), (12, 1)):
            await save(snapshots, files, meta_of(group, index), CHUNKS)
        reader = await snapshots.open(1, 10)
        await snapshots.remove(1, 10)
        await snapshots.remove(1, 10)
        with pytest.raises(NotFound):
            await reader.read_raw(0, 10)
        with pytest.raises(NotFound):
            await contents(reader, files)
        with pytest.raises(NotFound):
            await snapshots.open(1, 10)
        assert [(each.group, each.index) for each in snapshots.stored()] == [
            (1, 20),
            (2, 5),
            (12, 1),
        ]
        await snapshots.begin_receive(group=1, index=30, term=3, size=9, sender=2)
        await snapshots.remove_group(1)
        assert names(files) == ["12-1.snapshot", "2-5.snapshot"]
        await save(snapshots, files, meta_of(1, 10), CHUNKS)

    _scenario(scenario)


def test_a_start_removes_what_was_unfinished_and_leaves_what_it_does_not_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = ["01-2.snapshot", "1-2.snapshot.old", "notes", "x.temporary"]

    async def scenario(files: ImmediateFiles) -> None:
        await save(await recover(files), files, meta_of(), CHUNKS)
        for name in (*unknown, "4.temporary", "7.extra.a.sst"):
            await write_file(files, f"{FOLDER}/{name}", b"x")
        snapshots = await recover(files)
        assert names(files) == sorted([*unknown, "1-10.snapshot"])
        assert len(snapshots.stored()) == 1

    _scenario(scenario)
    told = capsys.readouterr().err
    assert all(name in told for name in unknown)
    assert "4.temporary" not in told


def test_a_name_that_a_killed_process_did_not_sync_is_durable_after_the_next_start() -> None:
    def killed_before_the_sync(operation: Operation) -> None:
        if isinstance(operation, seam.SyncDirectory | seam.Unlink):
            raise OSError(errno.EIO, "nothing is done any more")

    async def scenario(files: WatchedFiles) -> None:
        snapshots = await recover(files)
        files.watch = killed_before_the_sync
        with pytest.raises(StoreError):
            await save(snapshots, files, meta_of(), CHUNKS)
        system = files.file_system
        assert len((await recover(ImmediateFiles(system))).stored()) == 1
        after = ImmediateFiles(system.after_power_loss(LoseAll(random.Random(1))))
        assert len((await recover(after)).stored()) == 1

    run(scenario(WatchedFiles(lambda _: None)))


def test_a_bad_header_is_found_at_the_start_and_the_others_can_be_used() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        for group in (1, 2, 3):
            await save(snapshots, files, meta_of(group), CHUNKS)
        files.file_system.flip_bit(f"{FOLDER}/2-10.snapshot", offset=30)
        await perform(files, seam.Rename(f"{FOLDER}/3-10.snapshot", f"{FOLDER}/3-11.snapshot"))
        snapshots = await recover(files)
        assert [each.group for each in snapshots.stored()] == [1]
        assert list(snapshots.damaged) == [(2, 10), (3, 11)]
        with pytest.raises(StoreDamaged, match=r"2-10\.snapshot is damaged.*leader send"):
            await snapshots.open(2, 10)
        with pytest.raises(AlreadyExists):
            await snapshots.begin_receive(group=2, index=10, term=3, size=9, sender=2)
        await snapshots.remove(2, 10)
        await snapshots.remove_group(3)
        assert (snapshots.damaged, names(files)) == ({}, ["1-10.snapshot"])
        await save(snapshots, files, meta_of(2), CHUNKS)

    _scenario(scenario)


def test_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(files: ImmediateFiles) -> None:
        monkeypatch.setattr(snapshot_format, "VERSION", 2)
        await save(await recover(files), files, meta_of(), CHUNKS)
        monkeypatch.undo()
        with pytest.raises(UnsupportedVersion, match=r"1-10\.snapshot.*format 2.*reads up to 1"):
            await recover(files)

    _scenario(scenario)


def test_bounds_and_names_are_kept() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        with pytest.raises(TooLarge, match="smaller chunks"):
            await save(snapshots, files, meta_of(), [bytes(CHUNK_BYTES_MAX + 1)])
        huge = SnapshotMeta(1, 1, 1, meta_of().configuration, {}, bytes(META_BYTES_MAX))
        with pytest.raises(TooLarge, match="host data"):
            await save(snapshots, files, huge, [])
        extra = ExtraFileList()
        for name in ("../secret", "a/b", "", ".hidden", "x" * 129):
            with pytest.raises(InvalidName):
                extra.add(name, "/data/file")
        extra.add("file", "/data/missing")
        with pytest.raises(AlreadyExists):
            extra.add("file", "/data/other")
        with pytest.raises(NotFound, match="/data/missing"):
            await snapshots.save(meta_of(), iter([b"x"]), extra, never)
        for number in range(snapshot_format.EXTRA_FILES_MAX - 1):
            extra.add(f"file-{number}", "/data/file")
        with pytest.raises(TooLarge):
            extra.add("one-more", "/data/file")
        assert names(files) == []
        await save(snapshots, files, meta_of(), CHUNKS)
        async with await snapshots.open(1, 10) as reader:
            with pytest.raises(OutOfRange):
                await reader.read_raw(reader.size + 1, 1)
            with pytest.raises(TooLarge):
                await reader.read_raw(0, RAW_BYTES_MAX + 1)
            assert len(await raw(reader, 100)) == reader.size

    _scenario(scenario)


def test_an_extracted_file_may_be_kept_by_renaming_it() -> None:
    async def scenario(files: ImmediateFiles) -> None:
        snapshots = await recover(files)
        await save(snapshots, files, meta_of(), CHUNKS, EXTRA)
        async with await snapshots.open(1, 10) as reader:
            paths = await reader.extract_extra()
            await perform(files, seam.Rename(paths["table.sst"], "/data/kept"))
        assert names(files) == ["1-10.snapshot"]
        assert files.file_system.contents("/data/kept") == EXTRA["table.sst"]

    _scenario(scenario)


def test_a_large_snapshot_on_a_real_disk(tmp_path: Path) -> None:
    chunks = [random.Random(number).randbytes(700_000) for number in range(8)]
    extra = {"large": random.Random(9).randbytes(3 << 20), "exact": bytes(1 << 20), "none": b""}

    async def scenario(files: ThreadFiles) -> None:
        collected = ExtraFileList()
        for name, data in extra.items():
            (tmp_path / name).write_bytes(data)
            collected.add(name, str(tmp_path / name))
        folder = str(tmp_path / "snapshots")
        snapshots = await SnapshotFiles.recover(files, folder)
        stored = await snapshots.save(meta_of(), iter(chunks), collected, never)
        async with await snapshots.open(1, 10) as reader:
            assert await contents(reader, files) == (chunks, extra)
            receiver = await snapshots.begin_receive(
                group=1, index=10 + 1, term=3, size=reader.size, sender=2
            )
            await receiver.abort()
        (tmp_path / "snapshots" / "1-10.snapshot").rename(tmp_path / "sent")
        snapshots = await SnapshotFiles.recover(files, folder)
        data = (tmp_path / "sent").read_bytes()
        receiver = await snapshots.begin_receive(
            group=1, index=10, term=3, size=len(data), sender=2
        )
        for offset in range(0, len(data), 1 << 20):
            await receiver.write(offset, data[offset : offset + (1 << 20)])
        await receiver.finish()
        assert snapshots.stored() == [stored]
        await snapshots.remove(1, 10)
        assert list((tmp_path / "snapshots").iterdir()) == []

    files = ThreadFiles()
    try:
        run_for_real(scenario(files))
    finally:
        files.close()
