"""A node's listener for clients in this loop, and one client that sees every byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.model import NodeId, Partition, PartitionState, TableConfig
from raftwood.zeppelin.node.data_server import CONNECTIONS_MAX, DataServer
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.decoding import first_decoded
from tests.kits.zeppelin.static_view import PASSWORD, WRITER, StaticView, node, topology_of


class Client:
    """Bytes in and out, and answers decoded."""

    def __init__(
        self, server: DataServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self._data = bytearray()
        self._others: list[Client] = []

    def send(self, *commands: str) -> None:
        words = [command.split(" ") for command in commands]
        self.writer.write(
            b"".join(
                b"*%d\r\n" % len(each)
                + b"".join(b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in each)
                for each in words
            )
        )

    async def answers(self, count: int, within_s: float = 5) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(within_s):
            while len(found) < count:
                if (first := first_decoded(bytes(self._data))) is not None:
                    found.append(first[0])
                    del self._data[: first[1]]
                    continue
                piece = await self.reader.read(1 << 16)
                assert piece, f"the connection ended behind {self._data!r}"
                self._data += piece
        return found

    async def __call__(self, *commands: str) -> list[Any]:
        self.send(*commands)
        return await self.answers(len(commands))

    async def another(self) -> "Client":
        """One more, logged in; it ends with the server."""
        port = self.writer.get_extra_info("peername")[1]
        client = Client(self.server, *await asyncio.open_connection("127.0.0.1", port))
        assert await client(f"AUTH {WRITER} {PASSWORD}") == ["OK"]
        self._others.append(client)
        return client

    async def close(self) -> None:
        for each in (*self._others, self):
            each.writer.close()
            with contextlib.suppress(ConnectionError):
                await each.writer.wait_closed()

    async def is_silent(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.read(1), 0.05)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def connected(
    view: StaticView,
    *,
    logs_in: bool = True,
    connections_max: int = CONNECTIONS_MAX,
    is_behind: Callable[[], bool] = lambda: False,
) -> AsyncIterator[Client]:
    with real_environment() as environment:
        async with DataServer(
            view, environment, connections_max=connections_max, is_behind=is_behind
        ) as server:
            await server.listen()
            async with connected_to(server, logs_in=logs_in) as client:
                yield client


@asynccontextmanager
async def connected_to(server: DataServer, *, logs_in: bool = True) -> AsyncIterator[Client]:
    """One more client."""
    client = Client(server, *await asyncio.open_connection("127.0.0.1", server.port))
    try:
        if logs_in:
            assert await client(f"AUTH {WRITER} {PASSWORD}") == ["OK"]
        yield client
    finally:
        await client.close()


def two_nodes(
    state: PartitionState = PartitionState.ACTIVE, *, is_handed_over: bool = False
) -> StaticView:
    a, b = NodeId("a"), NodeId("b")
    first = (b, a) if is_handed_over else (a, b)
    config = TableConfig(partitions=4, replicas=2, ack="memory")
    partitions = [
        Partition(epoch=1, master=first[0], slaves=first[1:], state=state),
        Partition(epoch=1, master=b, slaves=(a,)),
        Partition(epoch=1, master=b),
        Partition(epoch=1, master=None, slaves=(a,)),
    ]
    topology = topology_of([node("a", 7001), node("b", 7002)], partitions, config)
    return StaticView(topology, "a")


def key_of(partition: int) -> str:
    return next(f"k{n}" for n in range(1000) if slot_of(b"k%d" % n) * 4 // 16384 == partition)
