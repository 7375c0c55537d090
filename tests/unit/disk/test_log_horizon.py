"""A log that lost its end knows it: the HORIZON file tells how far it went."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Completion, Operation
from raftwood.disk.segment_log import Run, committer
from raftwood.disk.segment_log.format import encode_segment_header
from raftwood.disk.segment_log.horizon import (
    SLOT_BYTES,
    Horizon,
    HorizonFile,
    decode_horizon,
    encode_horizon,
)
from raftwood.disk.segment_log.recovery import inspect
from raftwood.testing import FileSystem, ImmediateFiles
from raftwood.testing.file_system import DescriptorTable, Fate, KeepAll, LoseAll
from tests.kits.disk.log_in_memory import FOLDER, WatchedFiles, open_log, run

HORIZON = f"{FOLDER}/HORIZON"
Harm = Callable[[FileSystem], None]


def _copy(disk: FileSystem) -> FileSystem:
    return disk.after_power_loss(KeepAll(random.Random(0)))


def _data(disk: FileSystem, path: str) -> bytearray:
    size = disk.apply(DescriptorTable(), seam.Size(path))
    return bytearray(disk.apply(DescriptorTable(), seam.Read(path, 0, size)))


def _change(disk: FileSystem, path: str, data: bytes | None) -> None:
    """Replace a file's contents, or remove it."""
    session = DescriptorTable()
    if data is None:
        disk.apply(session, seam.Unlink(path))
        return
    disk.apply(session, seam.Open(path, create=True))
    disk.apply(session, seam.Truncate(path, 0))
    disk.apply(session, seam.Write(path, 0, (data,)))


def _segments(disk: FileSystem) -> list[str]:
    names = disk.apply(DescriptorTable(), seam.ListDirectory(FOLDER))
    return [f"{FOLDER}/{name}" for name in names if name.endswith(".segment")]


def _newest_with_data(disk: FileSystem) -> str:
    return [path for path in _segments(disk) if any(_data(disk, path)[64:])][-1]


def _without_newest(disk: FileSystem) -> None:
    _change(disk, _newest_with_data(disk), None)


def _with_zeroed_tail(disk: FileSystem) -> None:
    path = _newest_with_data(disk)
    data = _data(disk, path)
    last = bytes(data).rindex(b"a record")
    data[last - 2_000 :] = bytes(len(data) - last + 2_000)
    _change(disk, path, bytes(data))


def _cut(disk: FileSystem) -> None:
    path = _newest_with_data(disk)
    data = bytes(_data(disk, path))
    _change(disk, path, data[: data.rindex(b"RWFLUSH", 0, data.rindex(b"a record"))])


async def _filled(files: ImmediateFiles, count: int = 40) -> None:
    log = await open_log(files)
    for index in range(1, count + 1):
        await log.commit(Run(1, 1, index, 1, b"a record" * 100))
    await log.close()


@pytest.mark.parametrize("harm", [_without_newest, _with_zeroed_tail, _cut])
def test_a_log_that_lost_its_end_is_refused(harm: Harm) -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await _filled(files)
        damaged = _copy(files.file_system)
        harm(damaged)
        with pytest.raises(StoreDamaged, match=r"\.segment at offset"):
            await open_log(ImmediateFiles(damaged))
        found = await inspect(ImmediateFiles(damaged), FOLDER, lambda _: None)
        assert found.damages
        await (await open_log(files)).close()

    run(scenario())


def test_an_older_copy_of_the_newest_segment_is_noticed() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        for index in range(1, 4):
            await log.commit(Run(1, 1, index, 1, b"a record" * 100))
        older = _copy(files.file_system)
        await log.commit(Run(1, 1, 4, 1, b"a record" * 100))
        await log.close()
        damaged = _copy(files.file_system)
        path = _newest_with_data(damaged)
        _change(damaged, path, bytes(_data(older, path)))
        with pytest.raises(StoreDamaged, match="at offset"):
            await open_log(ImmediateFiles(damaged))

    run(scenario())


def test_after_a_kill_the_loss_of_the_newest_segment_is_noticed() -> None:
    """Nobody closed the log: the horizon was told of the segment before it was written."""

    async def scenario() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        for index in range(1, 41):
            await log.commit(Run(1, 1, index, 1, b"a record" * 100))
        for lose in (KeepAll(random.Random(0)), LoseAll(random.Random(0))):
            damaged = files.file_system.after_power_loss(lose)
            _without_newest(damaged)
            with pytest.raises(StoreDamaged, match="the segment is missing"):
                await open_log(ImmediateFiles(damaged))
        await log.close()

    run(scenario())


@pytest.mark.parametrize("idle_s", [0.1, 1.5])
def test_an_idle_log_s_zeroed_tail_is_noticed(idle_s: float) -> None:
    """After a kill a moment later, after a power loss when the note was synced."""

    async def scenario() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        for index in range(1, 9):
            await log.commit(Run(1, 1, index, 1, b"a record" * 100))
        await asyncio.sleep(idle_s)
        lose = KeepAll if idle_s < 1 else LoseAll
        damaged = files.file_system.after_power_loss(lose(random.Random(0)))
        _with_zeroed_tail(damaged)
        with pytest.raises(StoreDamaged, match="at offset"):
            await open_log(ImmediateFiles(damaged))
        await log.close()

    run(scenario())


def test_the_loss_of_the_horizon_is_noticed() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await _filled(files, 3)
        for data in (None, b"", bytes(2 * SLOT_BYTES)):
            damaged = _copy(files.file_system)
            _change(damaged, HORIZON, data)
            with pytest.raises(StoreDamaged, match=r"HORIZON .* how far the log went"):
                await open_log(ImmediateFiles(damaged))

    run(scenario())


def test_a_horizon_of_another_log_is_refused() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await _filled(files, 3)
        other = encode_horizon(Horizon(bytes(16), 99, 0, 1, False))
        _change(files.file_system, HORIZON, other)
        with pytest.raises(StoreDamaged, match="it is of log 0000"):
            await open_log(files)

    run(scenario())


def test_a_log_without_any_segment_is_not_a_new_one() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await _filled(files, 3)
        for path in _segments(files.file_system):
            _change(files.file_system, path, None)
        with pytest.raises(StoreDamaged, match="lost all of its segments"):
            await open_log(files)

    run(scenario())


def test_a_log_knows_whether_it_was_closed() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        assert log.was_closed
        await log.commit(Run(1, 1, 1, 1, b"one"))
        killed = await open_log(ImmediateFiles(_copy(files.file_system)))
        assert not killed.was_closed
        await killed.close()
        await log.close()
        log = await open_log(files)
        assert log.was_closed
        killed = await open_log(ImmediateFiles(_copy(files.file_system)))
        assert not killed.was_closed, "it was open, and may have written what is lost now"
        await killed.close()
        await log.close()

    run(scenario())


class _SlowFiles(ImmediateFiles):
    """Syncs of the horizon take longer than the log waits before it is idle."""

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        is_slow = seam.DataSync(HORIZON) in operations

        def late(completion: Completion) -> None:
            asyncio.get_running_loop().call_later(0.06, callback, completion)

        super().submit(operations, late if is_slow else callback)


def test_a_slow_disk_does_not_make_a_closed_log_an_open_one() -> None:
    async def scenario() -> None:
        files = _SlowFiles()
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"one"))
        await log.close()
        log = await open_log(files)
        assert log.was_closed
        await log.close()

    run(scenario())


def test_segments_that_were_begun_and_never_synced_may_go() -> None:
    """Recovery removes them; a crash in the middle of that leaves a horizon that fits."""
    images: list[FileSystem] = []
    recovering = False

    def watch(_: Operation) -> None:
        if recovering:
            images.append(again.file_system.after_power_loss(KeepAll(random.Random(0))))
            images.append(again.file_system.after_power_loss(LoseAll(random.Random(0))))

    files = ImmediateFiles()
    again = WatchedFiles(watch)

    async def scenario() -> None:
        nonlocal recovering
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"acked"))
        for index in range(2, 30):
            log.write([Run(1, 1, index, 1, bytes(4_000))], written=lambda: None)
            await asyncio.sleep(0.01)
        again.file_system = files.file_system.after_power_loss(LoseAll(random.Random(0)))
        recovering = True
        killed = await open_log(again)
        recovering = False
        assert killed.bounds(1).next_index == 2
        await killed.close()
        await (await open_log(again)).close()
        assert len(images) > 10
        for image in images:
            log_again = await open_log(ImmediateFiles(image))
            assert log_again.bounds(1).next_index == 2
            await log_again.close()
        await log.close()

    run(scenario())


def test_one_bad_slot_leaves_the_other() -> None:
    older = Horizon(b"a log's identity", 7, 100, 3, False)
    newer = Horizon(b"a log's identity", 8, 200, 4, True)
    file = bytearray(2 * SLOT_BYTES)
    file[: len(encode_horizon(older))] = encode_horizon(older)
    newest = encode_horizon(newer)
    file[SLOT_BYTES : SLOT_BYTES + len(newest)] = newest
    assert decode_horizon(file) == newer
    file[SLOT_BYTES + 20] ^= 1
    assert decode_horizon(file) == older
    file[20] ^= 1
    assert decode_horizon(file) is None
    assert decode_horizon(file[:30]) is None


@pytest.mark.parametrize("bad_slot", [0, 1])
def test_either_slot_tells_that_a_log_was_closed(bad_slot: int) -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await _filled(files, 3)
        data = _data(files.file_system, HORIZON)
        data[bad_slot * SLOT_BYTES] ^= 1
        _change(files.file_system, HORIZON, bytes(data))
        log = await open_log(files)
        assert log.was_closed
        await log.close()

    run(scenario())


def test_a_power_loss_while_a_horizon_is_written_leaves_a_whole_slot() -> None:
    horizon = HorizonFile(FOLDER, log_id=bytes(16), last=None)
    disk, session = FileSystem([FOLDER]), DescriptorTable()
    for operation in horizon.opening(synced=0, begun=1):
        disk.apply(session, operation)
    for begun in (2, 3):
        for operation in horizon.durable(synced=0, begun=begun, is_closed=False):
            disk.apply(session, operation)
            for seed in range(20):
                torn = disk.after_power_loss(Fate(random.Random(seed), keep=0, tear=1))
                found = decode_horizon(_data(torn, HORIZON))
                assert found is not None
                assert found.begun in (begun - 1, begun)


def test_a_horizon_has_these_bytes() -> None:
    horizon = Horizon(bytes(range(16)), 3, 2 << 32 | 640, 2, True)
    assert encode_horizon(horizon).hex() == (
        "5257484f525a4e01"  # RWHORZN, version 1
        "93df5fa00ae723f1"
        "000102030405060708090a0b0c0d0e0f"
        "0300000000000000"
        "8002000002000000"
        "02000000"
        "01"
    )


def test_a_log_of_release_0_1_0_has_no_horizon_and_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        with monkeypatch.context() as patch:
            patch.setattr(committer, "FLAG_HORIZON", 0)
            await _filled(files)
        _change(files.file_system, HORIZON, None)
        log = await open_log(files)
        assert not log.was_closed, "nothing tells"
        assert log.bounds(1).next_index == 41
        await log.commit(Run(1, 1, 41, 1, b"a record"))
        await log.close()
        _without_newest(files.file_system)
        with pytest.raises(StoreDamaged, match="the segment is missing"):
            await open_log(files)

    run(scenario())


@pytest.mark.parametrize("is_blank", [True, False])
def test_a_bad_segment_that_was_only_prepared_is_no_damage(is_blank: bool) -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        for index in range(1, 41):
            await log.commit(Run(1, 1, index, 1, b"a record" * 100))
        disk = _copy(files.file_system)
        await log.close()
        path = _segments(disk)[-1]
        data = _data(disk, path)
        assert not any(data[64:])
        data[20] ^= 1
        data[9_000] = not is_blank
        _change(disk, path, bytes(data))
        if not is_blank:  # nobody can say what it was
            with pytest.raises(StoreDamaged, match="at offset 0"):
                await open_log(ImmediateFiles(disk))
            return
        log = await open_log(ImmediateFiles(disk))
        assert log.bounds(1).next_index == 41
        for index in range(41, 121):
            await log.commit(Run(1, 1, index, 1, b"a record" * 100))
        await log.close()
        log = await open_log(ImmediateFiles(disk))
        assert log.bounds(1).next_index == 121
        await log.close()

    run(scenario())


@pytest.mark.parametrize("opens_again", [False, True])
def test_a_log_that_lost_all_segments_with_data_is_damaged(opens_again: bool) -> None:
    """What is left was prepared behind them, or begun by a process that wrote nothing."""

    async def main() -> None:
        files = ImmediateFiles()
        await _filled(files)
        if opens_again:
            await (await open_log(files)).abandon()
        disk = files.file_system
        for path in [each for each in _segments(disk) if any(_data(disk, each)[64:])]:
            _change(disk, path, None)
        if not _segments(disk):  # an orderly end leaves none that was prepared
            _change(disk, f"{FOLDER}/0000000009.segment", _prepared(disk))
        with pytest.raises(StoreDamaged, match="missing"):
            await open_log(files)

    run(main())


def _prepared(disk: FileSystem) -> bytes:
    horizon = decode_horizon(_data(disk, HORIZON))
    assert horizon is not None
    return encode_segment_header(number=9, log_id=horizon.log_id).ljust(64 << 10, b"\0")
