"""Clients that write under faults, each request under its name, until it is answered."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

from raftwood.zeppelin.client import AsyncKv
from tests.kits.ports import LOCAL
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.processes import KvProcesses, Login
from tests.kits.zeppelin.simulation.clients import Connection

_ANSWER_S_MAX = 2.0
_COUNTERS = 16
"""So many that each partition has some."""


class KvConnections:
    """To the nodes of a cluster, as one user; made anew where they break."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._open: dict[int, Connection] = {}

    async def ask(self, port: int, *commands: tuple[str, ...]) -> list[Any]:
        """`OSError` where there is no answer."""
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                if port not in self._open:
                    self._open[port] = await self._connected(port)
                return await self._open[port].ask(*commands)
        except (OSError, TimeoutError) as error:
            self.drop(port)
            raise OSError(str(error)) from error

    async def _connected(self, port: int) -> Connection:
        connection = Connection(*await asyncio.open_connection(LOCAL, port))
        try:
            (answer,) = await connection.ask(("AUTH", self._login.user, self._login.password))
            if isinstance(answer, AnswerError):
                raise OSError(answer)
        except BaseException:
            connection.close()
            raise
        return connection

    def drop(self, port: int) -> None:
        if port in self._open:
            self._open.pop(port).close()

    def close(self) -> None:
        for port in [*self._open]:
            self.drop(port)


class Writer:
    """Counts by INCR and sets new keys, one request after the other."""

    def __init__(self, cluster: KvProcesses, login: Login, name: str) -> None:
        self._connections = KvConnections(login)
        self._ports = [ports[0] for owner, ports in cluster.ports.items() if "node" in owner]
        self._port = self._ports[0]
        self.name = name
        self.count = 0
        """So many requests were answered."""
        self.is_writing = True
        self.answered_at = 0.0
        self.longest_s = 0.0

    @property
    def counter(self) -> str:
        return f"counter-{self.name}"

    def keys(self) -> dict[str, str]:
        """That it has set."""
        return {f"{self.name}-{each}": str(each) for each in range(self.count)}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.answered_at = loop.time()
        try:
            while self.is_writing:
                number = self.count
                answers = await self._until_done(2 * number, ("INCR", self.counter))
                assert answers == number + 1, "an increment was lost, or done twice"
                await self._until_done(
                    2 * number + 1, ("SET", f"{self.name}-{number}", str(number))
                )
                self.count += 1
                now = loop.time()
                self.longest_s = max(self.longest_s, now - self.answered_at)
                self.answered_at = now
        finally:
            self._connections.close()

    async def _until_done(self, number: int, command: tuple[str, ...]) -> Any:
        while True:
            with contextlib.suppress(OSError):
                once = ("ONCE", self.name, str(number))
                _, answer = await self._connections.ask(self._port, once, command)
                if not isinstance(answer, AnswerError):
                    return answer
                if answer.startswith("MOVED"):
                    self._port = int(answer.rpartition(":")[2])
                    continue
            await asyncio.sleep(0.05)
            self._port = self._ports[(self._ports.index(self._port) + 1) % len(self._ports)]


class KvUser:
    """Of our own client, as it comes: no call fails, and each increment counts once."""

    def __init__(self, cluster: KvProcesses, login: Login) -> None:
        ports = [ports[0] for owner, ports in cluster.ports.items() if "node" in owner]
        self._addresses = [f"{LOCAL}:{port}" for port in ports]
        self._login = login
        self.count = 0
        self.is_writing = True

    def counter(self, number: int) -> str:
        return f"kv-counter-{number % _COUNTERS}"

    async def run(self) -> None:
        login = self._login
        async with await AsyncKv.connect(
            self._addresses, user=login.user, password=login.password
        ) as kv:
            while self.is_writing:
                counted = await kv.incr(self.counter(self.count))
                assert counted == self.count // _COUNTERS + 1, "lost, or done twice"
                self.count += 1

    def keys(self) -> dict[str, bytes]:
        counts = Counter(map(self.counter, range(self.count)))
        return {key: b"%d" % count for key, count in counts.items()}


async def read_replicas(
    cluster: KvProcesses, login: Login, keys: list[str]
) -> dict[str, list[object]]:
    """By key, what each replica has."""
    found: dict[str, list[object]] = {key: [] for key in keys}
    connections = KvConnections(login)
    try:
        for node in cluster.nodes.values():
            reads = [("GET", key) for key in keys]
            _, *answers = await connections.ask(cluster.ports[node.name][0], ("READONLY",), *reads)
            for key, answer in zip(keys, answers, strict=True):
                if not (isinstance(answer, AnswerError) and answer.startswith("MOVED")):
                    found[key].append(answer)
    finally:
        connections.close()
    return found
