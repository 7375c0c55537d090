"""The seams of a tailer: the deliverer of batches, the file system, and the watch of folders."""

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
        """Returns once the batch is stored, however long that takes; it is stored once, by its
        producer and sequence. Batches of one name are stored in the order of the calls: a call
        takes its turn before it first waits. If one fails, so do all that came behind it, unstored.
        """
        ...


class LineMasking(Protocol):
    """Makes sensitive values in lines unreadable."""

    def mask_block(self, block: bytes) -> bytes:
        """Masks whole lines; keeps the number of newlines."""
        ...


class OpenedFile(msgspec.Struct, frozen=True):
    """A file that was opened."""

    handle: Handle
    folder: str
    """The folder of the file itself, symbolic links followed."""
    look: FileLook


class TailFiles(Protocol):
    """The files of a machine: off the event loop, with OSError on failure."""

    async def scan(self, paths: Sequence[str], exclude: Sequence[str]) -> list[FoundFile]:
        """Returns regular files that globs match, in order of their paths; links are followed."""
        ...

    async def find(self, wanted: Sequence[tuple[str, int]]) -> list[FoundFile]:
        """Returns files by folder and inode, whatever their names; `is_matched` is off."""
        ...

    async def visit(self, paths: Sequence[str]) -> list[FoundFile | None]:
        """Returns the regular file at each path now, or None."""
        ...

    async def open(self, path: str) -> OpenedFile: ...

    async def read(self, handle: Handle, offset: int, length: int) -> tuple[bytes, FileLook]:
        """Reads bytes, fewer only at the file's end, and then looks at the file."""
        ...

    async def look(self, handles: Sequence[Handle]) -> list[FileLook | None]:
        """Looks at files, without their heads; None for one that is closed meanwhile."""
        ...

    async def work(self, job: Callable[[], Result]) -> Result:
        """Returns the result of a function that takes long and waits for nothing."""
        ...

    def close(self, handle: Handle) -> None:
        """Closes a file that is not being read."""
        ...

    async def end(self) -> None:
        """Waits for what is under way, and closes all files."""
        ...


class FolderEvents(Protocol):
    """Reports events in folders, so that not everything has to be scanned all the time."""

    def begin(self, on_events: Callable[[], None]) -> None:
        """Begins; calls `on_events` soon after something has happened."""
        ...

    async def follow(self, paths: Sequence[str], links: Mapping[str, str]) -> str:
        """Watches all folders that files of these globs may be in, and those that links lead to, by
        link. Returns why some have to be scanned instead; empty if none has to.
        """
        ...

    def take(self) -> list[WatchEvent]:
        """Returns the events since the last call, in order; never waits."""
        ...

    def end(self) -> None: ...
