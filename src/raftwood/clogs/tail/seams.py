"""What a tailer needs of others: somebody who delivers, and a file system to read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from raftwood.clogs.frames import LineBatch
from raftwood.clogs.tail.checkpoints import FileLook, FoundFile
from raftwood.clogs.tail.watch import WatchEvent

Result = TypeVar("Result")
Handle = int
"""An open file."""


class BatchDeliverer(Protocol):
    """The way to the log."""

    async def deliver(self, batch: LineBatch) -> None:
        """Returns once the batch is stored, however long that takes; there once, by its producer
        and sequence. Those of one name are stored in the order in which they come, before the first
        call waits for anything. Where one fails, so do all that came behind it, unstored.
        """
        ...


class LineMasking(Protocol):
    """What is sensitive in lines is made unreadable."""

    def mask_block(self, block: bytes) -> bytes:
        """Whole lines, with as many newlines as before."""
        ...


class OpenedFile(msgspec.Struct, frozen=True):
    """A file that was opened."""

    handle: Handle
    folder: str
    """Of the file itself, symbolic links followed."""
    look: FileLook


class TailFiles(Protocol):
    """The files of a machine: off the event loop, and with OSError where something is wrong."""

    async def scan(self, paths: Sequence[str], exclude: Sequence[str]) -> list[FoundFile]:
        """Regular files that globs match, in order of their paths; links are followed."""
        ...

    async def find(self, wanted: Sequence[tuple[str, int]]) -> list[FoundFile]:
        """Files by folder and inode, whatever their names; `is_matched` is off."""
        ...

    async def visit(self, paths: Sequence[str]) -> list[FoundFile | None]:
        """What each path leads to now, as far as it is a regular file."""
        ...

    async def open(self, path: str) -> OpenedFile: ...

    async def read(self, handle: Handle, offset: int, length: int) -> tuple[bytes, FileLook]:
        """Bytes, fewer at the file's end only, and how the file looked after that."""
        ...

    async def look(self, handles: Sequence[Handle]) -> list[FileLook | None]:
        """As they are now, without their heads; None for one that is closed meanwhile."""
        ...

    async def work(self, job: Callable[[], Result]) -> Result:
        """What a function comes to that takes long and waits for nothing."""
        ...

    def close(self, handle: Handle) -> None:
        """Of a file that nobody reads."""
        ...

    async def end(self) -> None:
        """Wait for what is under way, and close all files."""
        ...


class FolderEvents(Protocol):
    """Tells what happens in folders, so that not everything has to be scanned all the time."""

    def begin(self, on_events: Callable[[], None]) -> None:
        """Call this soon after something has happened."""
        ...

    async def follow(self, paths: Sequence[str], links: Mapping[str, str]) -> str:
        """Watch all folders that files of these globs may be in, and those that links lead to, by
        link. Answers why some have to be scanned instead; nothing where none has to.
        """
        ...

    def take(self) -> list[WatchEvent]:
        """What has happened since, in order; never waits."""
        ...

    def end(self) -> None: ...
