"""The same as in simulation, on real files and sockets: bad files of one store of three."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kits.raft.host_cluster import CLIENT, GROUP, NETWORK, SETTINGS, Lines, write
from tests.kits.running import run

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreError, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings
from raftwood.net import Server, Service
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService

_SETTINGS = msgspec.structs.replace(
    SETTINGS, tick_ms=50, snapshot_entries=60, snapshot_entries_kept=20
)
_LOG_SETTINGS = LogSettings(
    segment_bytes=64 << 10, flush_bytes_max=8 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)


class RealStores:
    """Three stores in this process, each with its folder and its port."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self.hosts: dict[int, NodeHost] = {}
        self._servers: dict[int, Server] = {}
        self.addresses: dict[int, str] = {}

    def folder(self, store: int) -> Path:
        return self._folder / f"store-{store}"

    async def serve(self, store: int) -> None:
        """Open the store and listen; at its first start the port is chosen."""
        host = await NodeHost.open(
            self._environment,
            str(self.folder(store)),
            cluster="test",
            store=store,
            network=NETWORK,
            settings=_SETTINGS,
            log_settings=_LOG_SETTINGS,
            peers=self.addresses,
        )
        service = Service()
        host.register(service)
        RaftService(host).register(service)
        credentials = NETWORK.server_credentials(store)
        server = Server(service, credentials, self._environment.random)
        await server.__aenter__()
        port = int(self.addresses[store].partition(":")[2]) if store in self.addresses else 0
        self.addresses[store] = f"127.0.0.1:{await server.listen('127.0.0.1', port)}"
        self.hosts[store], self._servers[store] = host, server

    async def start(self, store: int) -> None:
        await self.hosts[store].start_group(GROUP, Lines, members=self.addresses)

    async def stop(self, store: int) -> None:
        await self._servers.pop(store).__aexit__(None, None, None)
        await self.hosts.pop(store).close()

    def lines(self, store: int) -> list[bytes]:
        try:
            answer = self.hosts[store].stale_read(GROUP, b"all")
        except Unavailable:
            return []  # it is being restored
        return msgspec.msgpack.decode(answer, type=list[bytes])

    async def until(self, is_true: Callable[[], bool]) -> None:
        for _ in range(1_500):
            with suppress(Unavailable):  # being restored
                if is_true():
                    return
            await asyncio.sleep(0.02)
        raise TimeoutError("not true within 30 s")


def _flip(path: Path, chosen: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chosen.randrange(len(bytes(data).rstrip(b"\0")))] ^= 4
    path.write_bytes(data)


def _cut(path: Path, chosen: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chosen.randrange(len(data.rstrip(b"\0")))])


def _lose(path: Path, _: random.Random) -> None:
    path.unlink()


_DAMAGES: dict[str, tuple[str, Callable[[Path, random.Random], None]]] = {
    "flipped segment": ("log/*.segment", _flip),
    "cut segment": ("log/*.segment", _cut),
    "lost segment": ("log/*.segment", _lose),
    "flipped snapshot": ("snapshots/*.snapshot", _flip),
    "cut snapshot": ("snapshots/*.snapshot", _cut),
    "lost snapshot": ("snapshots/*.snapshot", _lose),
    "flipped identity": ("IDENTITY", _flip),
    "lost identity": ("IDENTITY", _lose),
}


@pytest.mark.parametrize("kind", _DAMAGES)
def test_bad_files_on_a_disk_are_repaired_or_halt_the_store(kind: str, tmp_path: Path) -> None:
    pattern, damage = _DAMAGES[kind]

    async def scenario(stores: RealStores, client: AsyncRaftClient) -> None:
        await write(client, 150)
        await stores.until(lambda: stores.lines(3) == stores.lines(1) == stores.lines(2))
        await stores.stop(3)
        paths = [path for path in stores.folder(3).glob(pattern) if path.read_bytes().strip(b"\0")]
        chosen = random.Random(kind)
        damage(chosen.choice(sorted(paths)), chosen)
        is_halted = False
        try:
            await stores.serve(3)
            await stores.start(3)
        except StoreError:
            is_halted = True
        await write(client, 50, start=150)
        assert is_halted == (pattern == "IDENTITY")
        others = [1, 2]
        if not is_halted:
            await stores.until(lambda: GROUP in stores.hosts[3].groups() and not _problem(stores))
            others = [1, 2, 3]
        await stores.until(lambda: all(len(stores.lines(store)) == 200 for store in others))
        for store in others:
            assert stores.lines(store) == stores.lines(1)

    _run(scenario, tmp_path)


def _problem(stores: RealStores) -> str:
    return stores.hosts[3].status(GROUP).problem


def _run(scenario: Callable[[RealStores, AsyncRaftClient], Any], folder: Path) -> None:
    async def main() -> None:
        with real_environment() as environment:
            stores = RealStores(environment, folder)
            try:
                for store in (1, 2, 3):
                    await stores.serve(store)
                for store in (1, 2, 3):
                    await stores.start(store)
                async with AsyncRaftClient(environment, CLIENT, stores.addresses) as client:
                    await scenario(stores, client)
            finally:
                for store in list(stores.hosts):
                    await stores.stop(store)

    run(main())
