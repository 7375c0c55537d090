"""Receiving a snapshot from another store: verified as it comes, named only once it is whole."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from raftwood.base.errors import Cancelled, OutOfRange, ProtocolError, StoreDamaged, TooLarge
from raftwood.base.files import Buffer
from raftwood.raft.host.snapshots.container import Decoder, SnapshotMeta
from raftwood.raft.host.snapshots.writing import PieceFile

SNAPSHOT_BYTES_MAX: Final = 1 << 40
"""No larger snapshot is received."""


class Announced(msgspec.Struct, frozen=True):
    """What a sender said that it would send."""

    group: int
    index: int
    term: int
    size: int
    sender: int

    def __str__(self) -> str:
        return f"the snapshot of group {self.group} at {self.index} from store {self.sender}"


class Receiver:
    """One snapshot on its way in; any error drops it, and the sender begins again.

    Calls are served one after another. It waits for ever for a sender that is gone: whoever began
    it aborts it, by time or by beginning another.
    """

    def __init__(
        self,
        announced: Announced,
        file: PieceFile,
        *,
        commit: Callable[[PieceFile, SnapshotMeta, int], Awaitable[None]],
        forget: Callable[["Receiver"], None],
    ) -> None:
        self.announced = announced
        self.received = 0
        """Bytes taken so far: where the next piece has to begin."""
        self._file = file
        self._commit = commit
        self._forget = forget
        self._decoder = Decoder()
        self._last_piece: tuple[int, int, int] | None = None
        self._turn = asyncio.Lock()
        self._is_open = True
        self._is_kept = False

    async def begin(self) -> None:
        """Make the file; called once, by whoever hands the receiver out."""
        self._check_open()
        await self._file.create()

    async def write(self, offset: int, data: Buffer) -> None:
        """Take the next piece; the same piece as the last one again is taken as said already.

        `OutOfRange` for one from elsewhere, which changes nothing. `ProtocolError` where the bytes
        are no snapshot or not the announced one, `DiskFull` or `StoreError` where the disk fails.
        """
        async with self._turn:
            self._check_open()
            piece = (offset, len(data), xxh3_64_intdigest(data))
            if piece == self._last_piece:
                return
            if offset != self.received:
                raise OutOfRange(
                    f"{self.announced} goes on at {self.received}, not at {offset}: send from there"
                )
            try:
                self._verify(data)
                await self._file.add(data)
                await self._file.flush()
            except BaseException:
                # Also where only the waiting was given up: how the write ended is unknown then.
                await self.abort()
                raise
            self._check_open()
            self.received += len(data)
            self._last_piece = piece

    async def finish(self) -> None:
        """Keep the snapshot: durable when this returns; `ProtocolError` where it is not whole.

        Said again, it does nothing.
        """
        async with self._turn:
            if self._is_kept:
                return
            self._check_open()
            try:
                with _blamed(self.announced):
                    self._decoder.finish()
                if self.received != self.announced.size:
                    raise ProtocolError(
                        f"{self.announced} has {self.received} bytes, not the announced "
                        f"{self.announced.size}: send it again"
                    )
                meta = self._decoder.meta
                assert meta is not None
                self._close()
                await self._commit(self._file, meta, self.received)
                self._is_kept = True
            except BaseException:
                self._close()
                await self._file.discard()
                raise

    async def abort(self) -> None:
        """Drop what was received; nothing happens where it has been kept or dropped already."""
        if self._is_open:
            self._close()
            await self._file.discard()

    def _close(self) -> None:
        self._is_open = False
        self._forget(self)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Cancelled(f"{self.announced} is no longer being received: begin it again")

    def _verify(self, data: Buffer) -> None:
        if self.received + len(data) > self.announced.size:
            raise TooLarge(
                f"{self.announced} is larger than the announced {self.announced.size} bytes: "
                "announce its size"
            )
        with _blamed(self.announced):
            self._decoder.feed(data)
        meta, said = self._decoder.meta, self.announced
        if meta is not None and (meta.group, meta.index, meta.term) != (
            said.group,
            said.index,
            said.term,
        ):
            raise ProtocolError(
                f"{said} is one of group {meta.group} at {meta.index}, term {meta.term}: announce "
                "what is sent"
            )


@contextmanager
def _blamed(announced: Announced) -> Iterator[None]:
    """Damage in what a peer sent is the peer's, and not of this store."""
    try:
        yield
    except StoreDamaged as error:
        raise ProtocolError(
            f"{announced} is damaged: {error.message}; send it again, or another one where the "
            "sender's copy is bad"
        ) from None
