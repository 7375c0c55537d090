"""The real twemproxy, Debian's `nutcracker`, is asked where keys go: our ring says the same.

Its backends are made up: each answers any key with its own number.
"""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from raftwood.clogs.configuration import LogServer, RingConfiguration
from raftwood.clogs.ring import Routing
from tests.kits.install import debian
from tests.kits.ports import free_ports
from tests.kits.running import run

pytestmark = pytest.mark.needs("nutcracker")

KEYS = [f"/var/log/shop{number // 7}/app{number}.log" for number in range(400)]
FAILED = -1
"""In the place of a server's number: nutcracker has an error for the key."""
SECONDS_MAX = 60
ATTEMPTS_MAX = 50


class Backend(asyncio.Protocol):
    """A connection to a made-up server of memcached."""

    def __init__(self, number: int, connections: set["Backend"]) -> None:
        self._value, self._connections = str(number), connections
        self._rest = b""
        self.transport = asyncio.Transport()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)

    def connection_lost(self, _reason: Exception | None) -> None:
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        for line in lines:
            key = line.split()[1].decode()
            head = f"VALUE {key} 0 {len(self._value)}"
            self.transport.write(f"{head}\r\n{self._value}\r\nEND\r\n".encode())


class Backends:
    """Servers, each on a port of its own."""

    def __init__(self, servers: list[asyncio.Server]) -> None:
        self._servers = servers
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, count: int) -> AsyncIterator["Backends"]:
        loop = asyncio.get_running_loop()
        connections: set[Backend] = set()
        backends = cls(
            [
                await loop.create_server(partial(Backend, number, connections), "127.0.0.1", 0)
                for number in range(count)
            ]
        )
        try:
            yield backends
        finally:
            for number in range(count):
                backends.stop(number)
            for each in connections:
                each.transport.abort()
            await asyncio.sleep(0)

    def stop(self, number: int) -> None:
        self._servers[number].close()


def _servers(
    backends: Backends, *, weights: Sequence[int] = (1,), prefix: str = ""
) -> list[LogServer]:
    return [
        LogServer(
            host="127.0.0.1",
            port=port,
            weight=weight,
            name=f"{prefix}{number}" if prefix else "",
        )
        for number, (port, weight) in enumerate(
            zip(backends.ports, itertools.cycle(weights), strict=False)
        )
    ]


class Pool:
    """A running nutcracker in front of servers."""

    def __init__(self, socket: str, process: subprocess.Popen[str]) -> None:
        self._socket, self._process = socket, process

    @classmethod
    @contextlib.contextmanager
    def of(
        cls, folder: Path, servers: Sequence[LogServer], *, hash_tag: str = "", ejects: bool = False
    ) -> Iterator["Pool"]:
        package = debian.install("nutcracker")
        file, socket = folder / "nutcracker.yml", folder / "pool.sock"
        file.write_text(_settings(socket, servers, hash_tag=hash_tag, ejects=ejects))
        command = (
            str(package.folder / "usr" / "sbin" / "nutcracker"),
            *("--conf-file", str(file), "--output", str(folder / "log")),
            *("--pid-file", str(folder / "pid")),
            *("--stats-addr", "127.0.0.1", "--stats-port", str(free_ports(1)[0])),
        )
        with subprocess.Popen(
            command, env=package.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield cls(str(socket), process)
            finally:
                process.kill()

    async def asked(self, keys: Sequence[str]) -> list[int]:
        """The numbers of the servers that it asks for these keys."""
        reader, writer = await self._connected()
        try:
            writer.write("".join(f"get {key}\r\n" for key in keys).encode())
            return [await _answer(reader, key) for key in keys]
        finally:
            writer.close()
            await writer.wait_closed()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while True:
            try:
                return await asyncio.open_unix_connection(self._socket)
            except (FileNotFoundError, ConnectionRefusedError):
                assert self._process.poll() is None, self._process.communicate()[1]
                assert asyncio.get_running_loop().time() < deadline, "it does not listen"
                await asyncio.sleep(0.02)


def _settings(socket: Path, servers: Sequence[LogServer], *, hash_tag: str, ejects: bool) -> str:
    settings = [
        f"listen: {socket}",
        "hash: md5",
        "distribution: ketama",
        f"auto_eject_hosts: {'true' if ejects else 'false'}",
        "server_failure_limit: 1",
        "server_retry_timeout: 600000",
        "timeout: 20000",
        *([f'hash_tag: "{hash_tag}"'] if hash_tag else []),
        "servers:",
        *(f" - {each.host}:{each.port}:{each.weight} {each.name}".rstrip() for each in servers),
    ]
    return "".join(["pool:\n", *(f"  {line}\n" for line in settings)])


async def _answer(reader: asyncio.StreamReader, key: str) -> int:
    line = (await reader.readline()).decode()
    if line.startswith("SERVER_ERROR"):
        return FAILED
    assert line.split()[:2] == ["VALUE", key]
    number = int(await reader.readline())
    assert await reader.readline() == b"END\r\n"
    return number


def _ours(
    servers: Sequence[LogServer],
    keys: Sequence[str],
    *,
    hash_tag: str = "",
    gone: Sequence[int] = (),
) -> list[int]:
    configuration = RingConfiguration(servers=tuple(servers), hash_tag=hash_tag)
    live = {each.ring_name for number, each in enumerate(servers) if number not in gone}
    placed = Routing(configuration, live).servers_of(list(keys))
    return [servers.index(each) for each in placed]


def test_keys_of_25_equal_servers_go_to_the_same_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with Backends.started(25) as backends:
            servers = _servers(backends, prefix="n")
            with Pool.of(tmp_path, servers) as pool:
                assert await pool.asked(KEYS) == _ours(servers, KEYS)

    run(main())


def test_keys_of_servers_with_weights_go_to_the_same_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with Backends.started(7) as backends:
            servers = _servers(backends, weights=(1, 2, 5, 100, 33))
            with Pool.of(tmp_path, servers) as pool:
                assert await pool.asked(KEYS) == _ours(servers, KEYS)

    run(main())


@pytest.mark.parametrize("hash_tag", ["{}", "//", "pp"])
def test_tags_in_keys_are_taken_in_the_same_way(hash_tag: str, tmp_path: Path) -> None:
    shapes = ("{}", "{{{}}}", "a{{{}}}b{{c}}", "{{}}{}", "{}{{x", "}}{}{{x}}", "{{{{{}}}}}")
    keys = [shape.format(f"{number}") for number in range(20) for shape in shapes] + KEYS[:50]

    async def main() -> None:
        async with Backends.started(9) as backends:
            servers = _servers(backends, prefix="tagged-")
            with Pool.of(tmp_path, servers, hash_tag=hash_tag) as pool:
                asked = await pool.asked(keys)
                assert asked == _ours(servers, keys, hash_tag=hash_tag)
                assert asked != _ours(servers, keys)

    run(main())


def test_a_dead_server_that_is_not_ejected_keeps_its_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with Backends.started(5) as backends:
            servers = _servers(backends, prefix="s")
            backends.stop(2)
            with Pool.of(tmp_path, servers) as pool:
                expected = [FAILED if number == 2 else number for number in _ours(servers, KEYS)]
                assert await pool.asked(KEYS) == expected

    run(main())


@pytest.mark.parametrize("count", [4, 26], ids=["", "and all have other points"])
def test_a_server_that_is_ejected_leaves_the_same_ring(count: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with Backends.started(count) as backends:
            servers = _servers(backends, prefix="s")
            backends.stop(1)
            with Pool.of(tmp_path, servers, ejects=True) as pool:
                for _ in range(ATTEMPTS_MAX):
                    if FAILED not in (asked := await pool.asked(KEYS)):
                        break
                assert asked == _ours(servers, KEYS, gone=(1,))

    run(main())
