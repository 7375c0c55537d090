"""What the kernel tells of real folders."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from raftwood.clogs.tail import inotify
from raftwood.clogs.tail.files import MachineFiles
from raftwood.clogs.tail.inotify import FolderWatch
from raftwood.clogs.tail.watch import EventKind, WatchEvent

_WAIT_S = 60.0


class Heard:
    """A watch of `logs/*.log`, and what it told."""

    def __init__(self, path: Path, watch: FolderWatch, woken: asyncio.Event) -> None:
        self.path = path
        self.watch = watch
        self._woken = woken

    async def follow(self, *patterns: str, **links: Path) -> str:
        paths = [f"{self.path}/{each}" for each in patterns]
        targets = {f"{self.path}/{link}": str(target) for link, target in links.items()}
        return await self.watch.follow(paths, targets)

    async def events(self, last: EventKind) -> list[WatchEvent]:
        """Up to the first one of this kind, none twice in a row; paths without the folder."""
        found: list[WatchEvent] = []
        async with asyncio.timeout(_WAIT_S):
            while True:
                self._woken.clear()
                for each in self.watch.take():
                    path, origin = (
                        text.removeprefix(f"{self.path}/") for text in (each.path, each.origin)
                    )
                    if not found or found[-1] != WatchEvent(each.kind, path, origin):
                        found.append(WatchEvent(each.kind, path, origin))
                if any(each.kind is last for each in found):
                    return found
                await self._woken.wait()


def watched(path: Path, use: Callable[[Heard], Awaitable[None]]) -> None:
    async def run() -> None:
        files, woken = MachineFiles(), asyncio.Event()
        watch = FolderWatch(files)
        watch.begin(woken.set)
        try:
            await use(Heard(path, watch, woken))
        finally:
            watch.end()
            await files.end()

    asyncio.run(run())


def test_what_happens_to_files_is_told_in_order(tmp_path: Path) -> None:
    async def use(heard: Heard) -> None:
        assert await heard.follow("*.log") == ""
        (tmp_path / "a.log").write_text("one")
        (tmp_path / "a.log").rename(tmp_path / "a.log.1")
        (tmp_path / "a.log.1").unlink()
        assert await heard.events(EventKind.REMOVED) == [
            WatchEvent(EventKind.CREATED, "a.log"),
            WatchEvent(EventKind.WRITTEN, "a.log"),
            WatchEvent(EventKind.MOVED, "a.log.1", "a.log"),
            WatchEvent(EventKind.REMOVED, "a.log.1"),
        ]
        (tmp_path / "b.log").write_text("one")
        await heard.events(EventKind.WRITTEN)
        (tmp_path / "b.log").rename(tmp_path.parent / f"{tmp_path.name}-away")
        assert await heard.events(EventKind.REMOVED) == [WatchEvent(EventKind.REMOVED, "b.log")]

    watched(tmp_path, use)


@pytest.mark.parametrize("pattern", ["new/a.log", "*/a.log", "**/a.log", "new/sub/*.log"])
def test_a_new_folder_that_may_have_files_asks_for_a_scan(tmp_path: Path, pattern: str) -> None:
    async def use(heard: Heard) -> None:
        assert await heard.follow(pattern) == ""
        (tmp_path / "new" / "sub").mkdir(parents=True)
        assert WatchEvent(EventKind.UNCLEAR) in await heard.events(EventKind.UNCLEAR)
        assert await heard.follow(pattern) == ""
        (tmp_path / "new" / "a.log").write_text("x")
        (tmp_path / "new" / "sub" / "b.log").write_text("x")
        name = "new/sub/b.log" if "sub" in pattern else "new/a.log"
        assert WatchEvent(EventKind.CREATED, name) in await heard.events(EventKind.WRITTEN)

    watched(tmp_path, use)


def test_more_folders_than_can_be_watched_are_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "_FOLDERS_MAX", len(tmp_path.parts) + 3)
    for number in range(2):
        (tmp_path / f"{number}").mkdir()

    async def use(heard: Heard) -> None:
        assert await heard.follow("*/a.log") == ""
        for number in range(2, 5):
            (tmp_path / f"{number}").mkdir()
        assert "folders" in await heard.follow("*/a.log")

    watched(tmp_path, use)


def test_what_is_written_to_the_target_of_a_link_is_told_of_the_link(tmp_path: Path) -> None:
    target = tmp_path / "real" / "x"
    target.parent.mkdir()
    target.write_text("x")
    (tmp_path / "link").symlink_to(target)

    async def use(heard: Heard) -> None:
        assert await heard.follow("li*", link=target) == ""
        target.write_text("more")
        assert WatchEvent(EventKind.WRITTEN, "link") in await heard.events(EventKind.WRITTEN)
        target.rename(tmp_path / "real" / "y")
        moved = WatchEvent(EventKind.MOVED, "real/y", "link")
        assert moved in await heard.events(EventKind.MOVED)

    watched(tmp_path, use)


def test_folders_that_cannot_be_watched_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(heard: Heard) -> None:
        assert await heard.follow("none/*.log") == "", "it is heard of once it is there"
        monkeypatch.setattr(inotify, "_LOCAL", frozenset())
        assert "where others may write" in await heard.follow("*.log")

    watched(tmp_path, use)


def test_events_that_the_kernel_had_to_drop_ask_for_a_scan(tmp_path: Path) -> None:
    count = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    async def use(heard: Heard) -> None:
        await heard.follow("*.log")
        names = [(tmp_path / "a").open("ab", 0), (tmp_path / "b").open("ab", 0)]
        for number in range(count + 100):
            names[number % 2].write(b"x")
        for each in names:
            each.close()
        assert WatchEvent(EventKind.UNCLEAR) in await heard.events(EventKind.UNCLEAR)

    watched(tmp_path, use)
