"""The real file system: what globs find, and how files look that are open."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from raftwood.clogs.tail.checkpoints import HEAD_BYTES
from raftwood.clogs.tail.files import MachineFiles
from raftwood.clogs.tail.settings import COMPRESSED

Result = TypeVar("Result")


def _with_files(use: Callable[[MachineFiles], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        files = MachineFiles()
        try:
            return await use(files)
        finally:
            await files.end()

    return asyncio.run(run())


def _scan(folder: Path, *patterns: str, exclude: tuple[str, ...] = COMPRESSED) -> list[str]:
    paths = [f"{folder}/{pattern}" for pattern in patterns]
    found = _with_files(lambda files: files.scan(paths, exclude))
    return [each.path.removeprefix(f"{folder}/") for each in found]


def test_globs_find_regular_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("z.log", "a.log", "a.log.1.gz", "b/x.log", "b/c/y.log", "other"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "broken.log").symlink_to(tmp_path / "nowhere")
    assert _scan(tmp_path, "*.log*") == ["a.log", "z.log"]
    assert _scan(tmp_path, "**/*.log") == ["a.log", "b/c/y.log", "b/x.log", "z.log"]
    assert _scan(tmp_path, "z.log", "*.log", "missing") == ["a.log", "z.log"]
    assert _scan(tmp_path, "**/*.log", exclude=("z*", "*/b/*")) == ["a.log"]


def test_a_file_that_is_named_as_it_is_is_never_excluded(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_text("x")
    assert _scan(tmp_path, "a.gz") == ["a.gz"]
    assert _scan(tmp_path, "*.gz") == []


def test_a_link_leads_to_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_text("hello")
    (tmp_path / "x.log").symlink_to(tmp_path / "real" / "x")

    async def use(files: MachineFiles) -> None:
        (found,) = await files.scan([f"{tmp_path}/*.log"], ())
        opened = await files.open(found.path)
        assert found.identity.inode == os.stat(tmp_path / "real" / "x").st_ino
        assert opened.look.identity == found.identity
        assert opened.folder == str(tmp_path / "real")
        assert opened.look.head == b"hello"

    _with_files(use)


def test_a_renamed_file_is_found_by_its_inode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    inode = os.stat(tmp_path / "a").st_ino
    (tmp_path / "a").rename(tmp_path / "b")
    wanted = [(str(tmp_path), inode), (str(tmp_path / "gone"), inode), (str(tmp_path), 1)]
    (found,) = _with_files(lambda files: files.find(wanted))
    assert (found.path, found.identity.inode, found.is_matched) == (f"{tmp_path}/b", inode, False)


def test_a_deleted_file_is_read_and_known_as_such(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "a").write_bytes(data)

    async def use(files: MachineFiles) -> None:
        opened = await files.open(f"{tmp_path}/a")
        (tmp_path / "a").unlink()
        read, look = await files.read(opened.handle, 10, 1 << 20)
        assert (read, look.links, look.size) == (data[10:], 0, len(data))
        assert look.head == data[:HEAD_BYTES]
        (again,) = await files.look([opened.handle])
        assert again is not None
        assert (again.identity, again.head) == (look.identity, b"")
        files.close(opened.handle)
        assert await files.look([opened.handle]) == [None]

    _with_files(use)


def test_a_file_is_born_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("one")

    async def use(files: MachineFiles) -> None:
        first = await files.open(f"{tmp_path}/a")
        (tmp_path / "a").write_text("other")
        again = await files.open(f"{tmp_path}/a")
        other = await files.open(f"{tmp_path}/b")
        assert first.look.birth_ns == again.look.birth_ns
        if first.look.birth_ns:  # not every file system tells
            assert abs(first.look.birth_ns - os.stat(tmp_path / "a").st_mtime_ns) < 10**10
            assert first.look.birth_ns <= other.look.birth_ns

    _with_files(use)


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    async def use(files: MachineFiles) -> None:
        with pytest.raises(FileNotFoundError):
            await files.open(f"{tmp_path}/a")

    _with_files(use)
