import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from raftwood.base.errors import (
    NotFound,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreLocked,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.seams import Delete, KvEngine, Put
from raftwood.disk import rocksdb
from raftwood.disk.rocksdb import KEY_BYTES_MAX, VALUE_BYTES_MAX, RocksEngine
from tests.kits.disk.kv_suite import KvSuite


class TestRocksEngine(KvSuite):
    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[KvEngine]:
        engine = await RocksEngine.open(folder, cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
        try:
            yield engine
        finally:
            await engine.close()


PAIRS = {b"key%05d" % number: os.urandom(60) for number in range(3000)}


async def _fill(folder: str) -> None:
    engine = await RocksEngine.open(folder)
    engine.write_batch([Put(key, value) for key, value in PAIRS.items()])
    await engine.close()


async def _read_all(folder: str, *, by: str) -> None:
    engine = await RocksEngine.open(folder)
    try:
        if by == "scan":
            assert dict(engine.scan()) == PAIRS
        elif by == "reverse scan":
            assert dict(engine.scan(reverse=True)) == PAIRS
        elif by == "get":
            assert all(engine.get(key) == value for key, value in PAIRS.items())
        else:
            assert await engine.multi_get(list(PAIRS)) == list(PAIRS.values())
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "kv"
    asyncio.run(_fill(str(folder)))
    return folder


def _flip(where: float) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int((len(data) - 1) * where)] ^= 0x10
        file.write_bytes(data)

    return change


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("by", ["scan", "reverse scan", "get", "multi_get"])
@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("*.sst", _flip(0.3)),
        ("*.sst", _flip(0.0)),
        ("*.sst", _flip(0.995)),
        ("*.sst", _cut),
        ("*.sst", _remove),
        ("MANIFEST-*", _flip(0.5)),
        ("MANIFEST-*", _cut),
        ("MANIFEST-*", _remove),
        ("CURRENT", _flip(0.5)),
        ("CURRENT", _cut),
        ("CURRENT", _remove),
        (rocksdb.NAME, _flip(0.9)),
        (rocksdb.NAME, _cut),
    ],
)
def test_damage_is_told_and_never_read_as_absence(
    whole: Path, tmp_path: Path, pattern: str, change: Callable[[Path], None], by: str
) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)
    files = list(folder.glob(pattern))
    assert files
    for file in files:
        change(file)
    with pytest.raises((StoreDamaged, UnsupportedVersion), match=r"kv.*restore"):
        asyncio.run(_read_all(str(folder), by=by))


@pytest.mark.parametrize("where", [0.1, 0.3, 0.6, 0.8, 0.9])
def test_what_memory_tells_is_never_absence_where_the_disk_is_damaged(
    whole: Path, tmp_path: Path, where: float
) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)
    for file in folder.glob("*.sst"):
        _flip(where)(file)

    async def look() -> None:
        with suppress(StoreDamaged, UnsupportedVersion):
            engine = await RocksEngine.open(str(folder))
            try:
                for key, value in PAIRS.items():
                    assert engine.get_cached(key) in ((False, None), (True, value))
            finally:
                await engine.close()

    asyncio.run(look())


def test_memory_tells_what_was_read_or_written_and_what_cannot_be_there(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)

    async def look() -> None:
        engine = await RocksEngine.open(str(folder))
        key, other, *_ = PAIRS
        assert engine.get_cached(key) == (False, None)
        assert engine.get(key) == PAIRS[key]
        assert engine.get_cached(key) == (True, PAIRS[key])
        engine.write_batch([Delete(key), Put(other, b"")])
        assert engine.get_cached(key) == (True, None)
        assert engine.get_cached(other) == (True, b"")
        await engine.close()
        with pytest.raises(ShuttingDown):
            engine.get_cached(key)

    asyncio.run(look())


def test_every_bit_flip_of_a_table_is_told_or_harmless(whole: Path, tmp_path: Path) -> None:
    told = 0
    for step in range(25):
        folder = tmp_path / f"kv{step}"
        shutil.copytree(whole, folder)
        for file in folder.glob("*.sst"):
            _flip(step / 25)(file)
        try:
            asyncio.run(_read_all(str(folder), by="scan"))
        except (StoreDamaged, UnsupportedVersion):
            told += 1
    assert told >= 20


def test_a_newer_format_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    shutil.copytree(whole, folder)
    stamp = bytearray((folder / rocksdb.NAME).read_bytes())
    stamp[4] += 1
    (folder / rocksdb.NAME).write_bytes(stamp)
    with pytest.raises(UnsupportedVersion, match="or a newer one"):
        asyncio.run(RocksEngine.open(str(folder)))


def test_a_folder_in_use_is_locked_within_and_across_processes(tmp_path: Path) -> None:
    folder = str(tmp_path / "kv")

    async def main() -> None:
        engine = await RocksEngine.open(folder)
        with pytest.raises(StoreLocked, match="another"):
            await RocksEngine.open(folder)
        program = (
            "import asyncio, sys\n"
            "from raftwood.base.errors import StoreLocked\n"
            "from raftwood.disk.rocksdb import RocksEngine\n"
            "try: asyncio.run(RocksEngine.open(sys.argv[1]))\n"
            "except StoreLocked: print('locked')\n"
        )
        other = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program, folder],
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout == "locked\n"
        held = engine.scan()
        await engine.close()
        # The scan is still referred to; it must not keep the lock.
        again = await RocksEngine.open(folder)
        await again.close()
        del held

    asyncio.run(main())


def test_a_file_where_the_folder_should_be_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("not a folder")
    with pytest.raises(StoreError, match="kv"):
        asyncio.run(RocksEngine.open(str(tmp_path / "kv")))


def test_values_and_keys_above_the_limit_are_refused_and_nothing_of_the_batch_is_kept(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        engine = await RocksEngine.open(str(tmp_path / "kv"))
        for large in (
            Put(b"k", b"x" * (VALUE_BYTES_MAX + 1)),
            Put(b"k" * (KEY_BYTES_MAX + 1), b""),
        ):
            with pytest.raises(TooLarge, match="limit"):
                engine.write_batch([Put(b"a", b"1"), large])
        assert engine.get(b"a") is None
        engine.write_batch([Put(b"k" * KEY_BYTES_MAX, b"x" * VALUE_BYTES_MAX)])
        await engine.close()

    asyncio.run(main())


def test_a_checkpoint_below_a_missing_folder_is_not_called_damage(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await RocksEngine.open(str(tmp_path / "kv"))
        with pytest.raises(NotFound, match="missing"):
            await engine.checkpoint(str(tmp_path / "missing" / "copy"))
        await engine.close()

    asyncio.run(main())


def test_after_kill_flushed_data_stays_and_unflushed_data_is_gone(tmp_path: Path) -> None:
    folder = str(tmp_path / "kv")
    program = textwrap.dedent("""
        import asyncio, os, signal, sys
        from raftwood.base.seams import Put
        from raftwood.disk.rocksdb import RocksEngine

        async def main():
            engine = await RocksEngine.open(sys.argv[1])
            engine.write_batch([Put(b"applied", b"1"), Put(b"flushed", b"x")])
            await engine.flush()
            engine.write_batch([Put(b"applied", b"2"), Put(b"unflushed", b"x")])
            os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
    """)
    killed = subprocess.run([sys.executable, "-c", program, folder], check=False)
    assert killed.returncode == -9

    async def main() -> None:
        engine = await RocksEngine.open(folder)
        # Both writes of a batch stay, or neither: the applied index tells where to replay from.
        assert list(engine.scan()) == [(b"applied", b"1"), (b"flushed", b"x")]
        await engine.close()

    asyncio.run(main())


def test_flushes_at_once_and_a_cancelled_one_do_not_disturb_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        engine = await RocksEngine.open(str(tmp_path / "kv"))
        engine.write_batch([Put(key, value) for key, value in PAIRS.items()])
        cancelled = asyncio.create_task(engine.flush())
        await asyncio.sleep(0)
        cancelled.cancel()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(engine.flush())
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        late = asyncio.create_task(engine.multi_get(list(PAIRS)))
        await asyncio.sleep(0)
        await engine.close()
        assert await late == list(PAIRS.values())

    asyncio.run(main())


def test_a_close_that_is_cancelled_closes_after_its_flush_all_the_same(tmp_path: Path) -> None:
    folder = str(tmp_path / "kv")

    async def main() -> None:
        engine = await RocksEngine.open(folder)
        engine.write_batch([Put(key, value) for key, value in PAIRS.items()])
        with engine._flushing:
            closing = asyncio.create_task(engine.close())
            await asyncio.sleep(0.05)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(StoreLocked):
                await RocksEngine.open(folder)
        await engine._idle.wait()
        again = await RocksEngine.open(folder)
        assert dict(again.scan()) == PAIRS
        await again.close()

    asyncio.run(main())
