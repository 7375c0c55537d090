"""Servers, clients and raw peers for the tests of `net`."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from raftwood.net import (
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    ServerTls,
    Service,
    connect,
)
from raftwood.net.frames import Frame, FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import ClientHandshake, Welcome
from raftwood.testing import simulate
from tests.kits.running import WAIT_S_MAX

Result = TypeVar("Result")

RUN_S_MAX = 120

CLUSTER = "test-cluster"
NODE = Identity(role="node", node_id="n1")
CLIENT = Identity(role="client", node_id="c1")
OPERATOR = Identity(role="operator", node_id="o1")
SECRET = Secret(b"the secret of the client" * 2)
SECRETS = {CLIENT: SECRET, OPERATOR: Secret(b"the secret of the operator" * 2)}
SERVER_CREDENTIALS = ServerCredentials(
    cluster_id=CLUSTER, identity=NODE, secret_of=SECRETS.get, accepts_certificates=True
)
CREDENTIALS = ClientCredentials(cluster_id=CLUSTER, identity=CLIENT, secret=SECRET)

ECHO = Method(1, "echo")
WAIT = Method(2, "wait")
COUNT = Method(3, "count")
HOLD = Method(4, "hold")
TELL = Method(5, "tell")


class Handlers:
    """A service with one method of each sort, and a record of what happened to them."""

    def __init__(self) -> None:
        self.service = Service()
        self.service.fast(ECHO, lambda call, payload: call.reply(payload))
        self.service.task(WAIT, self._wait)
        self.service.stream(COUNT, self._count)
        self.service.fast(HOLD, lambda call, _payload: self.held.append(call))
        self.service.one_way(TELL, lambda peer, payload: self.told.append((peer, payload)))
        self.held: list[Any] = []
        self.told: list[tuple[Identity, Payload]] = []
        self.release = asyncio.Event()
        self.started = 0
        self.cancelled = 0
        self.finished = 0
        self.produced = 0
        self.stream_closed = False

    async def _wait(self, _call: object, payload: Any) -> Any:
        self.started += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished += 1
        return payload

    async def _count(self, _call: object, payload: Any) -> AsyncIterator[bytes]:
        """Items of `size` bytes; the payload says how many."""
        number, size = (int(part) for part in bytes(payload).split())
        try:
            for _ in range(number):
                self.produced += 1
                yield bytes(size)
        finally:
            self.stream_closed = True


@contextlib.asynccontextmanager
async def serving(
    service: Service,
    *,
    limits: ServerLimits | None = None,
    tls: ServerTls | None = None,
    credentials: ServerCredentials = SERVER_CREDENTIALS,
) -> AsyncIterator[tuple[Server, int]]:
    async with Server(service, credentials, random.Random(1), limits) as server:
        yield server, await server.listen(tls=tls)


async def dial(
    port: int,
    *,
    credentials: ClientCredentials = CREDENTIALS,
    limits: ClientLimits | None = None,
    tls: ClientTls | None = None,
) -> Connection:
    host = "127.0.0.1" if tls is None else "localhost"
    return await connect(host, port, credentials, random.Random(2), limits=limits, tls=tls)


class RawPeer:
    """A client that speaks frames by hand, so that it can also speak them wrongly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def request(self, method: Method, request_id: int, payload: bytes = b"") -> None:
        self.send(
            encode_frame(
                FrameKind.REQUEST, method=method.number, request_id=request_id, payload=payload
            )
        )

    async def frame(self) -> Frame | None:
        """The next frame, or None at the end of the connection."""
        async with asyncio.timeout(WAIT_S_MAX):
            while not self._frames:
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def authenticate(self, credentials: ClientCredentials = CREDENTIALS) -> None:
        handshake = ClientHandshake(credentials, random.Random(3))
        self.send(handshake.hello())
        while True:
            frame = await self.frame()
            assert frame is not None
            answer = handshake.received(frame)
            if isinstance(answer, Welcome):
                return
            self.send(answer)


@contextlib.asynccontextmanager
async def raw_peer(port: int, *, authenticated: bool = True) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = RawPeer(reader, writer)
    try:
        if authenticated:
            await peer.authenticate()
        yield peer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server that misbehaves as told; answers its port."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await handle(reader, writer)
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.get_running_loop().create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_checked(kind: str, main: Coroutine[Any, Any, Result]) -> Result:
    """Run on a loop of this kind; errors nobody saw and tasks left behind fail the test."""
    complaints: list[dict[str, Any]] = []

    async def checked() -> Result:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(RUN_S_MAX):
            result = await main
        for _ in range(3):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return result

    if kind == "simulated":
        result: Result = simulate(1, lambda _: checked()).result
    elif kind == "uvloop":
        result = uvloop.run(checked())
    else:
        result = asyncio.run(checked())
    assert not complaints, complaints
    return result
