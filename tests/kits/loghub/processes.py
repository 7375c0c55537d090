"""Log stores and gateways as real processes, and clients of them."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import AccessKey, AccessRole, LogKind
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.server.metadata import Metadata
from raftwood.server.cluster_client import connected_metastore
from tests.kits.logservice.processes import CLIENT_TIMEOUT_MS, WAIT_S_MAX, LogProcesses
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, StoreProcess

PROJECT = "p"
LOGSTORE = "s"
_USUAL = ("debug", "info", "warning")


class HubProcesses(LogProcesses):
    """Gateways by number, beside the stores."""

    def __init__(
        self, environment: Environment, folder: Path, *, gateways: int = 2, **options: Any
    ) -> None:
        settings = {
            "hakeeper.log_shards": 0,
            "loghub.retention_ms": 500,
            **options.pop("settings", {}),
        }
        super().__init__(environment, folder, settings=settings, **options)
        numbers = range(1, gateways + 1)
        ports = free_ports(gateways)
        self.gateways = {
            number: self._gateway(number, folder, f"{LOCAL}:{ports.pop()}") for number in numbers
        }
        self._hub_clients: list[AsyncLogHubClient] = []
        self.key: AccessKey

    def _gateway(self, number: int, folder: Path, address: str) -> StoreProcess:
        own = {"gateway.listen": address, "gateway.http_listen": ""}
        sets = [f"--set={name}={value}" for name, value in own.items()]
        command = (*RAFTWOOD, "gateway", "start", f"--config={self._file}", *sets)
        return StoreProcess(f"gateway-{number}", number, folder, address, command)

    async def __aexit__(self, *arguments: object) -> None:
        for client in self._hub_clients:
            await client.close()
        for gateway in self.gateways.values():
            gateway.discard()
        await super().__aexit__(*arguments)

    def launch_gateways(self, *numbers: int) -> None:
        """Start processes without waiting for them; all where none is named."""
        self._write_file()
        for number in numbers or self.gateways:
            self.gateways[number].begin()

    async def start_gateways(self, *numbers: int) -> None:
        self.launch_gateways(*numbers)
        for number in numbers or self.gateways:
            await self.gateways[number].ready()

    async def prepare(self, *, shards: int, log: LogKind = LogKind.LOGSERVICE) -> None:
        """A key, and a logstore; once all runs."""
        async with connected_metastore(self._environment, self.app_settings(), None) as store:
            metadata = Metadata(store)
            self.key = await AccessControl(self._environment, metadata).create(
                {"*": AccessRole.ADMIN}
            )
        client = await self.hub_client()
        await client.create_project(PROJECT)
        await client.create_logstore(PROJECT, LOGSTORE, shard_count=shards, log=log)

    async def hub_client(self) -> AsyncLogHubClient:
        """Closed at the end at the latest."""
        addresses = [gateway.address for gateway in self.gateways.values()]
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                client = await AsyncLogHubClient.connect(
                    self._environment,
                    addresses,
                    access_key=self.key.id,
                    access_secret=self.key.secret,
                    timeout_ms=CLIENT_TIMEOUT_MS,
                )
                break
            except RaftwoodError:
                # A key that was just made is not known to every gateway yet.
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        self._hub_clients.append(client)
        return client

    async def stop(self) -> None:
        """End all that run in order: gateways first."""
        running = [each for each in self.gateways.values() if each.is_running]
        for gateway in running:
            gateway.signal(signal.SIGTERM)
        for gateway in running:
            assert await gateway.ended() == 0, gateway.tail()
            strange = [what for level, what in gateway.events() if level not in _USUAL]
            assert not strange, f"{gateway.name} said {strange}"
        await super().stop()


@asynccontextmanager
async def hub_processes(folder: Path, **options: Any) -> AsyncIterator[HubProcesses]:
    """As `HubProcesses`, with an environment; all end in order, without a strange word."""
    with real_environment() as environment:
        async with HubProcesses(environment, folder, **options) as hub:
            yield hub
            await hub.stop()
