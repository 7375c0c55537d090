"""Well-formed frames in an order no sane peer would choose, for both ends of a connection."""

import asyncio
import random
from collections.abc import Sequence

from tests.kits.net.rpc import (
    COUNT,
    CREDENTIALS,
    ECHO,
    HOLD,
    SERVER_CREDENTIALS,
    TELL,
    WAIT,
    Handlers,
)
from tests.unit.net.conftest import Run

from raftwood.net import Connection, Server
from raftwood.net.client import Connection as ClientConnection
from raftwood.net.connection import FramedConnection
from raftwood.net.frames import FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import ClientHandshake, PeerLimits, ServerHandshake, Welcome
from raftwood.net.limits import ClientLimits, ServerLimits
from raftwood.net.server import ServerConnection

METHODS = [ECHO.number, WAIT.number, COUNT.number, HOLD.number, TELL.number, 77]


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; congestion comes and goes as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert low is not None

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data


def deliver(protocol: FramedConnection, data: bytes) -> None:
    view = memoryview(data)
    while view:
        buffer = protocol.get_buffer(-1)
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        protocol.buffer_updated(count)
        view = view[count:]


def random_frame(source: random.Random, kinds: Sequence[int], ids: int) -> bytes:
    kind = source.choice(kinds)
    # A one-way message to another method ends the connection, so it must be rare.
    is_told = kind == FrameKind.ONE_WAY and source.random() < 0.98
    return encode_frame(
        kind,
        method=TELL.number if is_told else source.choice(METHODS),
        request_id=source.randrange(ids),
        argument=source.choice([0, 0, 1, 500, 1 << 20, (1 << 32) - 1]),
        payload=source.choice([b"", b"3 5", b"500 100", b"\x92\xa1x\xa1y", bytes(5_000)]),
    )


def test_a_server_survives_any_sequence_of_frames(run: Run) -> None:
    kinds = [FrameKind.REQUEST] * 5 + [
        FrameKind.CANCEL,
        FrameKind.CANCEL,
        FrameKind.CREDIT,
        FrameKind.PING,
        FrameKind.PONG,
    ]
    kinds += [FrameKind.ONE_WAY] * 2

    async def one(seed: int) -> None:
        source = random.Random(seed)
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=3, streams_max=2, handler_tasks_max=4)
        server = Server(handlers.service, SERVER_CREDENTIALS, random.Random(1), limits)
        transport = MemoryTransport()
        session = ServerConnection(server, limits)
        session.connection_made(transport)
        client = ClientHandshake(CREDENTIALS, random.Random(2))
        answer: bytes | Welcome = client.hello()
        while isinstance(answer, bytes):
            deliver(session, answer)
            (frame,) = FrameDecoder().feed(transport.take())
            answer = client.received(frame)
        congested = False
        for _ in range(60):
            if transport.closing:
                break
            match source.randrange(8):
                case 0:
                    await asyncio.sleep(0)
                case 1 if handlers.held:
                    handlers.held.pop(source.randrange(len(handlers.held))).reply(b"held")
                case 2:
                    congested = not congested
                    (session.pause_writing if congested else session.resume_writing)()
                case _ if not transport.is_paused:
                    few = range(source.randrange(1, 4))
                    rare = [*kinds, source.randrange(256)] if source.random() < 0.02 else kinds
                    deliver(session, b"".join(random_frame(source, rare, 400) for _ in few))
        session.connection_lost(None)
        await server.close(0)
        assert (server.task_count, server.connection_count) == (0, 0)
        FrameDecoder().feed(transport.take())

    async def main() -> None:
        for seed in range(150):
            await one(seed)

    run(main())


def test_a_client_survives_any_sequence_of_frames(run: Run) -> None:
    kinds = [int(FrameKind.RESPONSE)] * 3 + [
        FrameKind.ERROR,
        FrameKind.STREAM_ITEM,
        FrameKind.STREAM_END,
        FrameKind.PING,
    ]

    async def one(seed: int) -> None:
        source = random.Random(seed)
        transport = MemoryTransport()
        limits = ClientLimits(requests_in_flight_max=4, requests_waiting_max=99)
        connection: Connection = ClientConnection(CREDENTIALS, random.Random(2), limits)
        connection.connection_made(transport)
        server = ServerHandshake(
            SERVER_CREDENTIALS, random.Random(1), PeerLimits(1 << 20, 4, 1 << 20, 4)
        )
        await asyncio.sleep(0)
        while server.peer is None:
            (frame,) = FrameDecoder().feed(transport.take())
            deliver(connection, server.received(frame))
        await connection.finish_handshake()
        calls = []
        for _ in range(40):
            if transport.closing or not connection.is_usable:
                break
            match source.randrange(6):
                case 0:
                    calls.append(connection.call(ECHO, b"x", source.choice([1, 5_000])))
                case 1 if connection.requests_under_way < 4:
                    connection.stream(COUNT, b"1 1")
                case 2 if calls:
                    source.choice(calls).cancel()
                case 3:
                    await asyncio.sleep(0)
                case _:
                    few = range(source.randrange(1, 4))
                    rare = source.random() < 0.05
                    some = [*kinds, FrameKind.GOAWAY, source.randrange(256)] if rare else kinds
                    deliver(connection, b"".join(random_frame(source, some, 12) for _ in few))
        connection.connection_lost(None)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert len(outcomes) == len(calls)
        assert connection.requests_under_way == 0
        assert connection._pending_bytes == 0

    async def main() -> None:
        for seed in range(150):
            await one(seed)

    run(main())
