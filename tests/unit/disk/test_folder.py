import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    InvalidName,
    NotFound,
    StoreDamaged,
    StoreLocked,
    UnsupportedVersion,
)
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings, Run, SegmentLog
from raftwood.disk.store import (
    IN_USE,
    DataFolder,
    FolderIdentity,
    Store,
    decode_identity,
    encode_identity,
)
from tests.kits.running import run

SMALL = LogSettings(segment_bytes=16 << 10)


def with_environment(work: Callable[[Environment], Coroutine[Any, Any, None]]) -> None:
    with real_environment() as environment:
        run(work(environment))


def test_a_folder_keeps_its_identity(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = str(tmp_path / "a/b/store")
        first = await DataFolder.open(environment, path, cluster="c", store=3)
        await first.close()
        second = await DataFolder.open(environment, path, cluster="c", store=3)
        assert second.identity == first.identity
        assert len(second.identity.incarnation) == 16
        await second.close()
        shutil.rmtree(path)
        third = await DataFolder.open(environment, path, cluster="c", store=3)
        assert third.identity.incarnation != first.identity.incarnation, "a wiped store is another"
        await third.close()

    with_environment(main)


def test_a_folder_of_another_store_is_refused_and_left_unlocked(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = str(tmp_path / "store")
        folder = await DataFolder.open(environment, path, cluster="c", store=1)
        await folder.close()
        for cluster, store in (("c", 2), ("d", 1)):
            with pytest.raises(InvalidInput, match="belongs to store 1 of cluster 'c'"):
                await DataFolder.open(environment, path, cluster=cluster, store=store)
        folder = await DataFolder.open(environment, path, cluster="c", store=1)
        await folder.close()

    with_environment(main)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = str(tmp_path / "store")
        folder = await DataFolder.open(environment, path, cluster="c", store=1)
        with real_environment() as other:
            for attempt in (
                DataFolder.open(other, path, cluster="c", store=1),
                DataFolder.open_existing(other, path),
            ):
                with pytest.raises(StoreLocked, match="stop that one"):
                    await attempt
        await folder.close()

    with_environment(main)


def test_bad_paths_and_names_are_the_users_mistake(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidInput, match="cannot use"):
            await DataFolder.open(environment, str(tmp_path / "file"), cluster="c", store=1)
        with pytest.raises(InvalidName, match=r"cluster name '\.\./x'"):
            await DataFolder.open(environment, str(tmp_path / "s"), cluster="../x", store=1)
        with pytest.raises(NotFound, match="no Raftwood store"):
            await DataFolder.open_existing(environment, str(tmp_path / "nothing"))

    with_environment(main)


def test_a_store_that_lost_its_log_or_its_identity_is_damaged_not_new(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = tmp_path / "store"

        async def opened() -> Store:
            return await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)

        store = await opened()
        await store.log.commit(Run(1, 1, 1, 1, b"x"))
        await store.close()
        hidden = tmp_path / "hidden"
        (path / "log").rename(hidden)
        with pytest.raises(StoreDamaged, match="lost its log"):
            await opened()
        hidden.rename(path / "log")
        identity = (path / "IDENTITY").read_bytes()
        (path / "IDENTITY").unlink()
        with pytest.raises(StoreDamaged, match="no IDENTITY"):
            await opened()
        (path / "IDENTITY").write_bytes(identity)
        store = await opened()
        assert store.log.bounds(1).next_index == 2
        await store.close()

    with_environment(main)


def test_another_log_takes_the_place_of_a_damaged_one_which_is_kept(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = tmp_path / "store"

        async def replace_log(folder: DataFolder, error: StoreDamaged) -> None:
            assert "lost its log" in error.message
            log = await SegmentLog.open(environment, folder.next_log_path(), SMALL)
            await log.commit(Run(1, 1, 1, 1, b"y"))
            await log.close()
            await folder.use_next_log()

        store = await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)
        incarnation = store.identity.incarnation
        await store.close()
        for segment in (path / "log").glob("*.segment"):
            segment.unlink()
        store = await Store.open(
            environment, str(path), cluster="c", store=1, settings=SMALL, replace_log=replace_log
        )
        assert await store.logs_aside() == [f"{path}/log"]
        assert store.identity.incarnation == incarnation
        await store.close()
        store = await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)
        assert store.log.bounds(1).next_index == 2
        await store.close()
        shutil.rmtree(path / "log")
        (path / "IDENTITY").unlink()
        with pytest.raises(StoreDamaged, match="no IDENTITY"):
            await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)

    with_environment(main)


def test_the_log_used_last_is_used_whatever_an_older_identity_names(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = tmp_path / "store"

        async def opened() -> DataFolder:
            return await DataFolder.open(environment, str(path), cluster="c", store=1)

        async def built(folder: DataFolder) -> None:
            log = await SegmentLog.open(environment, folder.next_log_path(), SMALL)
            await log.close()

        store = await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)
        await store.close()
        older = (path / "IDENTITY").read_bytes()
        folder = await opened()
        await built(folder)
        await folder.close()
        folder = await opened()
        assert folder.log_path == f"{path}/log", "a build that was interrupted is not in use"
        await folder.use_next_log()
        await built(folder)  # of a third one, and interrupted again
        await folder.close()
        newer = (path / "IDENTITY").read_bytes()
        (path / "IDENTITY").write_bytes(older)
        looked_at = await DataFolder.open_existing(environment, str(path))
        assert looked_at.log_path == f"{path}/log-2"
        await looked_at.close()
        assert (path / "IDENTITY").read_bytes() == older, "who looks changes nothing"
        folder = await opened()
        assert folder.log_path == f"{path}/log-2"
        await folder.close()
        assert (path / "IDENTITY").read_bytes() == newer
        (path / "log-2" / IN_USE).unlink()  # as if a crash had come before it was written
        await (await opened()).close()
        assert (path / "log-2" / IN_USE).exists()

    with_environment(main)


def test_an_identity_names_no_folder_but_that_of_a_log() -> None:
    stamp = encode_identity(FolderIdentity("c", 1, "00", log="../elsewhere"))
    with pytest.raises(StoreDamaged, match="names no folder of a log"):
        decode_identity(stamp, path="IDENTITY")


def test_a_damaged_log_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    async def main(environment: Environment) -> None:
        path = tmp_path / "store"
        store = await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)
        await store.close()
        (path / "log/0000000001.segment").write_bytes(bytes(100))
        for _ in range(2):
            with pytest.raises(StoreDamaged, match=r"0000000001\.segment"):
                await Store.open(environment, str(path), cluster="c", store=1, settings=SMALL)
        await asyncio.sleep(0)

    with_environment(main)


def test_the_stamp_has_golden_bytes() -> None:
    """Written by version 1; every later version reads it."""
    golden = (
        b'{"format":"raftwood-store","version":1,"identity":{"cluster":"c","store":7,'
        b'"incarnation":"00ff","initialised":true},"checksum":"f6a79c0f533c5ad8"}\n'
    )
    identity = FolderIdentity("c", 7, "00ff", initialised=True)
    assert encode_identity(identity) == golden
    assert decode_identity(golden, path="x") == identity


def test_a_newer_stamp_is_refused() -> None:
    newer = encode_identity(FolderIdentity("c", 7, "00ff")).replace(b'"version":1', b'"version":2')
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_identity(newer, path="x")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"format":"other"}'])
def test_what_is_no_stamp_is_damage(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="/x"):
        decode_identity(data, path="/x")


def test_every_flipped_bit_of_the_stamp_is_noticed() -> None:
    good = encode_identity(FolderIdentity("cluster", 7, "00ff"))
    expected = decode_identity(good, path="x")
    for position in range(len(good) * 8):
        bad = bytearray(good)
        bad[position // 8] ^= 1 << position % 8
        try:
            assert decode_identity(bytes(bad), path="x") == expected
        except (StoreDamaged, UnsupportedVersion):
            continue
    assert msgspec.json.decode(good)["version"] == 1
