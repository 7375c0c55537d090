"""`Checkpoint`: that of a partition, for programs without an event loop."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.disk.loop_thread import LoopThread
from raftwood.zeppelin.client.checkpoints import AsyncCheckpoint, CheckpointAbout
from raftwood.zeppelin.node.seams import BinlogPosition
from raftwood.zeppelin.pages import Page

if TYPE_CHECKING:
    import pyarrow

Item = TypeVar("Item")


class Checkpoint:
    """Use `Kv.checkpoint`, and `end` when done, or a `with` block; as `AsyncCheckpoint`."""

    def __init__(self, thread: LoopThread, checkpoint: AsyncCheckpoint) -> None:
        self._thread = thread
        self._checkpoint = checkpoint

    @property
    def about(self) -> CheckpointAbout:
        return self._checkpoint.about

    @property
    def position(self) -> BinlogPosition:
        return self._checkpoint.position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RaftwoodError):
            self.end()

    def pages(self, cursor: bytes = b"", **options: Any) -> Iterator[Page]:
        return each_of(self._thread, self._checkpoint.pages(cursor, **options))

    def arrow_pages(self, cursor: bytes = b"", **options: Any) -> "Iterator[pyarrow.RecordBatch]":
        return each_of(self._thread, self._checkpoint.arrow_pages(cursor, **options))

    def renew(self) -> None:
        self._thread.call(self._checkpoint.renew())

    def end(self) -> None:
        self._thread.call(self._checkpoint.end())


def each_of(thread: LoopThread, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
    """What comes from a generator on the client's own loop."""

    async def following() -> Item | None:
        return await anext(items, None)

    try:
        while (item := thread.call(following())) is not None:
            yield item
    finally:
        with suppress(Unavailable):  # the client is closed, and all of this with it
            thread.call(items.aclose())
