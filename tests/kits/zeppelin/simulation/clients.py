"""Clients of simulated nodes: they speak Redis's protocol, and send again what was not answered.

Each write has a name (`ONCE`), so that it counts once however often it is sent.
"""

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import msgspec

from raftwood.zeppelin.model import PartitionId, Topology
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.decoding import AnswerError, first_decoded
from tests.kits.zeppelin.simulation.node import DATA_PORT

if TYPE_CHECKING:
    from tests.kits.zeppelin.simulation.world import World

PASSWORD = "correct-horse"
HASH = "scrypt$64$00$eb68e61798ee3b9bd54a40028e088cf1a4db73e154f03a4673e321548d0354c7"
"""Of the password, made in no time."""
GIVES_UP = 0.5
"""The share of failed requests that are not tried again: what they did is a ghost, if it stays."""
_KEYS = tuple(f"key{number}" for number in range(8))
_COUNTERS = ("counter0", "counter1")


class Request(msgspec.Struct, frozen=True):
    """A command on one key, and the name that it has; a key that is never written again does
    without.
    """

    origin: tuple[bytes, int] | None
    words: tuple[str, ...]

    def commands(self) -> list[tuple[str, ...]]:
        if self.origin is None:
            return [self.words]
        return [("ONCE", self.origin[0].decode(), str(self.origin[1])), self.words]

    def partition(self, topology: Topology, table: str) -> PartitionId | None:
        known = topology.tables.get(table)
        if known is None:
            return None
        number = known.partition_of_slot(slot_of(self.words[1].encode()))
        return PartitionId(known.incarnation, number)

    def has_written(self, answer: Any) -> bool:
        return not isinstance(answer, AnswerError) and not (self.words[0] == "DEL" and answer == 0)


def random_request(source: random.Random, origin: tuple[bytes, int]) -> Request:
    data = f"{origin[0].decode()}/{origin[1]}"
    key = source.choice(_KEYS)
    kind = source.choices(("set", "new", "expiring", "delete", "increment"), (20, 40, 20, 5, 15))[0]
    match kind:
        case "new":
            # Nobody writes it ever again: where it is a ghost, it stays one.
            words: tuple[str, ...] = ("SET", data, data)
            return Request(origin if source.random() < 0.5 else None, words)
        case "set":
            words = ("SET", key, data)
        case "expiring":
            words = ("SET", key, data, "PX", str(int(10 ** source.uniform(2, 5))))
        case "delete":
            words = ("DEL", key)
        case _:
            words = ("INCR", source.choice(_COUNTERS))
    return Request(origin, words)


class Connection:
    """To one machine, as a user of a table."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._data = bytearray()

    async def ask(self, *commands: tuple[str, ...]) -> list[Any]:
        self._writer.write(b"".join(map(_encoded, commands)))
        answers: list[Any] = []
        while len(answers) < len(commands):
            if (found := first_decoded(bytes(self._data))) is not None:
                answers.append(found[0])
                del self._data[: found[1]]
                continue
            piece = await self._reader.read(1 << 16)
            if not piece:
                raise ConnectionError("the node has ended the connection")
            self._data += piece
        return answers

    def close(self) -> None:
        self._writer.transport.abort()


def _encoded(words: tuple[str, ...]) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words]
    return b"*%d\r\n%b" % (len(words), b"".join(parts))


class Client:
    """One of several, until the world's writing ends."""

    def __init__(self, world: "World", number: int, table: str) -> None:
        self._world = world
        self._table = table
        self._producer = f"c{number}".encode()
        self._random = random.Random(f"{world.simulation.seed}/{number}")
        self._connections: dict[str, Connection] = {}

    async def run(self) -> None:
        number = 0
        try:
            while self._world.is_writing:
                number += 1
                await self._until_done(random_request(self._random, (self._producer, number)))
                await asyncio.sleep(self._random.uniform(0.01, 0.1) * self._world.pace)
        finally:
            for name in [*self._connections]:
                self._drop(name)

    async def _until_done(self, request: Request) -> None:
        """The same request, again and again, with whoever may be master; some give up."""
        source, world = self._random, self._world
        while world.is_writing:
            partition = request.partition(world.meta.topology, self._table)
            name = None if partition is None else world.meta.machine_of(partition)
            if name is None or source.random() < 0.2:
                name = source.choice([*world.nodes])
            try:
                async with asyncio.timeout(source.uniform(0.5, 3)):
                    is_done = await self._send(name, request)
            except (OSError, TimeoutError):
                self._drop(name)
                is_done = False
            if is_done or source.random() < GIVES_UP:
                return
            await asyncio.sleep(source.uniform(0.01, 0.2))

    async def _send(self, name: str, request: Request) -> bool:
        connection = self._connections.get(name)
        if connection is None:
            connection = Connection(*await asyncio.open_connection(name, DATA_PORT))
            self._connections[name] = connection
            (answer,) = await connection.ask(("AUTH", self._table, PASSWORD))
            if isinstance(answer, AnswerError):
                raise ConnectionError(answer)
        sent = self._world.simulation.now
        *_, answer = await connection.ask(*request.commands())
        # It may have been split meanwhile: the later one has the records of the one before.
        partition = request.partition(self._world.meta.topology, self._table)
        if partition is not None and request.has_written(answer):
            mark = request.origin or request.words[1].encode()
            self._world.called_done(name, self._table, partition, mark, since=sent)
        return not isinstance(answer, AnswerError)

    def _drop(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()
