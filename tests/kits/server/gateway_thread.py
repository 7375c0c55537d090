"""A gateway beside the test, on a thread of its own: commands have their own event loop."""

import asyncio
import threading
from pathlib import Path
from typing import Self

from raftwood.base.configuration import compose
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.metastore.file_store import FileMetaStore
from raftwood.server.gateway import GatewayServer
from raftwood.server.settings import Settings
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.ports import free_ports

START_S_MAX = 60.0


class GatewayThread:
    """Use it as a context manager; metadata is in a folder, logs are in memory."""

    def __init__(self, folder: Path, *, is_whole: bool = False) -> None:
        """A whole one serves HTTP and syslog too."""
        self._folder = folder
        self._is_whole = is_whole
        self.metrics = Metrics(gateway="1")
        self.http_address = ""
        self._thread = threading.Thread(target=self._run)
        self._is_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.address = ""
        self.admin: AccessKey
        self.reader: AccessKey

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_started.wait(START_S_MAX)
        assert self.address
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S_MAX)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._is_started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        flags = [f"gateway.listen=127.0.0.1:{free_ports(1)[0]}", "gateway.http_listen="]
        if self._is_whole:
            flags.append(f"gateway.http_listen=127.0.0.1:{free_ports(1)[0]}")
            flags.append(f"ways_in.syslog_listen=127.0.0.1:{free_ports(1)[0]}")
            flags += ("ways_in.syslog_project=p", "ways_in.syslog_logstore=s")
            flags.append("ways_in.syslog_peers=127.0.0.0/8")
        settings = compose(Settings, flags=flags).settings
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, str(self._folder / "metastore"))
            server = await GatewayServer.start(
                environment, settings, store, MemoryLogs(), metrics=self.metrics
            )
            access = server.gateway.access
            self.admin = await access.create({"*": AccessRole.ADMIN})
            self.reader = await access.create({"shop": AccessRole.READER})
            self.address, self.http_address = server.address, server.http_address
            self._is_started.set()
            await self._stop.wait()
            await server.close()
            await store.close()
