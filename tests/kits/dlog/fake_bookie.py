"""A bookie of a test's own: it takes frames, and answers what the test says."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.bookkeeper.bookies import BookKeeperBookies
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.bookkeeper.messages import Request, Response
from raftwood.dlog.ledgers.metadata import BookieId

KEY = bytes(20)
BOOKIE = BookieId("fake")


class FakeBookie:
    """Frames in the order in which they came, and the connection that the last came by."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.connections = 0
        self.port = 0
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                frame = await reader.readexactly(size)
                self._writer = writer
                self.frames.put_nowait(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()


class Heard:
    """A sink that keeps what it hears."""

    def __init__(self) -> None:
        self.adds: list[tuple[int, RaftwoodError | None]] = []
        self._more = asyncio.Event()

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        assert bookie == BOOKIE
        self.adds.append((entry, error))
        self._more.set()

    async def until(self, count: int) -> list[tuple[int, RaftwoodError | None]]:
        async with asyncio.timeout(60):
            while len(self.adds) < count:
                self._more.clear()
                await self._more.wait()
        return self.adds


@asynccontextmanager
async def fake_bookie(
    settings: BookKeeperSettings | None = None,
) -> AsyncIterator[tuple[FakeBookie, BookKeeperBookies]]:
    fake = FakeBookie()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]

    async def resolve(_bookie: BookieId) -> tuple[str, int]:
        return "127.0.0.1", fake.port

    bookies = BookKeeperBookies(resolve, settings)
    try:
        yield fake, bookies
    finally:
        await bookies.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)  # for the server's tasks to end


def added(ledger: int, entry: int, status: int = 0) -> bytes:
    """An answer to an add by v2."""
    return struct.pack(">IIIqq", 24, 0x02010000, status, ledger, entry)


def read(ledger: int, entry: int, packed: bytes, status: int = 0) -> bytes:
    """An answer to a read by v2."""
    return struct.pack(">IIIqq", 24 + len(packed), 0x02020000, status, ledger, entry) + packed


def response_to(frame: bytes, **fields: object) -> bytes:
    """An answer by v3; fields of its inner message, by the operation."""
    request = Request.FromString(frame)
    response = Response(header=request.header, status=fields.get("status", 0))
    names = {1: "readResponse", 2: "addResponse", 6: "writeLacResponse", 7: "readLacResponse"}
    inner = getattr(response, names[request.header.operation])
    inner.SetInParent()
    for name, value in fields.items():
        setattr(inner, name, value)
    encoded: bytes = response.SerializeToString()
    return len(encoded).to_bytes(4) + encoded
