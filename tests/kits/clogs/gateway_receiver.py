"""A gateway that takes the lines of shippers, for tests of `raftwood ship`."""

import asyncio
import threading
from pathlib import Path
from typing import Self

from raftwood.base.configuration import compose
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.batches import HEAD_BYTES, decode_head, decompress
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.metastore.file_store import FileMetaStore
from raftwood.server.gateway import GatewayServer
from raftwood.server.settings import Settings
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import values_of
from tests.kits.ports import free_ports
from tests.kits.server.gateway_thread import START_S_MAX


class Receiver:
    """A gateway that takes lines, on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._is_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._server: GatewayServer
        self.key: AccessKey

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_started.wait(START_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S_MAX)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAFTWOOD_CLOGS_CLIENT__SERVERS": self._server.clogs_address,
            "RAFTWOOD_CLOGS_CLIENT__ACCESS_KEY": self.key.id,
            "RAFTWOOD_CLOGS_CLIENT__ACCESS_SECRET": self.key.secret,
        }

    def lines(self) -> list[str]:
        return asyncio.run_coroutine_threadsafe(self._lines(), self._loop).result(START_S_MAX)

    async def _lines(self) -> list[str]:
        streams = self._server.gateway.streams
        found: list[str] = []
        at = await streams.cursor("p", "s", 0, "begin")
        while True:
            pulled = await streams.pull("p", "s", 0, at)
            if not pulled.batches:
                return found
            at = pulled.next
            for each in pulled.batches:
                head = decode_head(each.data)
                body = memoryview(each.data)[HEAD_BYTES:]
                found += values_of(bytes(decompress(body, head.codec, raw_bytes=head.raw_bytes)))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        flags = (
            f"gateway.listen=127.0.0.1:{free_ports(1)[0]}",
            "gateway.http_listen=",
            "clogs.listen=127.0.0.1:0",
            "clogs.project=p",
            "clogs.logstore=s",
        )
        settings = compose(Settings, flags=flags).settings
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, str(self._folder / "metastore"))
            self._server = await GatewayServer.start(
                environment, settings, store, MemoryLogs(), metrics=Metrics()
            )
            gateway = self._server.gateway
            await gateway.catalog.create_project("p")
            await gateway.catalog.create_logstore("p", "s", shard_count=1)
            self.key = await gateway.access.create({"p": AccessRole.WRITER})
            self._is_started.set()
            await self._stop.wait()
            await self._server.close()
            await store.close()
