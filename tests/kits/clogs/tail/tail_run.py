"""A tailer over real files, and somebody who takes what it delivers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from raftwood.base.environment import Environment
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.tail.files import MachineFiles
from raftwood.clogs.tail.inotify import FolderWatch
from raftwood.clogs.tail.seams import LineMasking
from raftwood.clogs.tail.settings import TailSettings
from raftwood.clogs.tail.tailer import Tailer
from raftwood.disk.real_environment import real_environment
from tests.kits.clogs.tail.batch_lines import lines_of

_WAIT_S = 60.0


class Taker:
    """Takes batches while it is open; what came twice under one name counts once."""

    def __init__(self) -> None:
        self.batches: list[LineBatch] = []
        self.resumed: list[LineBatch] = []
        self.lines: dict[str, list[bytes]] = {}
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.waiting = 0
        self._known: dict[tuple[bytes, int], LineBatch] = {}

    async def deliver(self, batch: LineBatch) -> None:
        self.waiting += 1
        await self.is_open.wait()
        self.waiting -= 1
        if batch.is_resumed:
            self.resumed.append(batch)
        self.take(batch)

    def take(self, batch: LineBatch) -> None:
        if self._known.setdefault((batch.producer, batch.sequence), batch) is batch:
            self.batches.append(batch)
            self.lines.setdefault(batch.name, []).extend(lines_of(batch))


class Folder:
    """A folder of log files, a state folder, and lives of a tailer."""

    def __init__(self, path: Path, taker: Taker, environment: Environment) -> None:
        self.path = path / "logs"
        self.path.mkdir()
        self.state = str(path / "state")
        self.taker = taker
        self.environment = environment
        self._expected: dict[str, int] = {}
        self.settings = TailSettings(
            paths=(f"{self.path}/*.log",),
            name="{base}",
            poll_ms=10,
            scan_ms=20,
            grace_ms=60,
            partial_ms=100,
            retry_ms=20,
            close_ms=100,
        )

    def change(self, **changes: object) -> None:
        self.settings = msgspec.structs.replace(self.settings, **changes)

    def write(self, name: str, data: bytes) -> None:
        with (self.path / name).open("ab") as file:
            file.write(data)

    @asynccontextmanager
    async def tailing(self, masking: LineMasking | None = None) -> AsyncIterator[Tailer]:
        tailer = await self.start(masking)
        try:
            yield tailer
        finally:
            await tailer.close()
        for name, count in self._expected.items():
            assert len(self.taker.lines[name]) == count, f"more came of {name}"

    async def start(self, masking: LineMasking | None = None) -> Tailer:
        files = MachineFiles()
        return await Tailer.start(
            self.environment,
            self.settings,
            folder=self.state,
            files=files,
            delivering=self.taker,
            masking=masking,
            watching=FolderWatch(files) if self.settings.is_watching else None,
        )

    async def comes(self, name: str, *lines: bytes) -> None:
        """These lines and no others first, in time; at the end of the tailer's life, no more."""
        await until(lambda: len(self.taker.lines.get(name, [])) >= len(lines))
        assert self.taker.lines.get(name, [])[: len(lines)] == list(lines)
        self._expected[name] = len(lines)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not condition():  # noqa: ASYNC110  what it waits for is on disks and threads
            await asyncio.sleep(0.005)


@asynccontextmanager
async def folder_of_logs(path: Path) -> AsyncIterator[Folder]:
    with real_environment() as environment:
        yield Folder(path, Taker(), environment)
