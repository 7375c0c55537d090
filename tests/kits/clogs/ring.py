"""A ring of receivers in this process, on one storage, and a source that a test changes."""

import asyncio
from collections.abc import AsyncIterator

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.clogs.client.server_pool import ShipperCredentials
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.configuration import (
    HaRules,
    LogServer,
    RingConfiguration,
    VersionedConfiguration,
    configuration_digest,
)
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.clogs.seams import Sink
from raftwood.net import Identity, Secret
from tests.kits.clogs.memory_sink import MemorySink, MemoryStorage
from tests.kits.ports import free_ports

KEY = "tester"
SECRET = b"a secret of the tests alone, long enough"
ACCESS = ShipperCredentials(key_id=KEY, secret=Secret(SECRET))
QUICK = HaRules(check_gap_ms=200, invalid_checks_max=3, isolation_first_ms=200)


def settings_of(**changes: object) -> ClogsClientSettings:
    values: dict[str, object] = {
        "access_key": KEY,
        "access_secret": Secret(SECRET.decode()),
        "linger_ms": 5,
        "retry_first_ms": 20,
        "retry_longest_ms": 200,
        "request_ms": 2_000,
    }
    return ClogsClientSettings(**(values | changes))  # type: ignore[arg-type]


class StaticSource:
    """Tells what a test puts into it."""

    def __init__(self, *first: VersionedConfiguration) -> None:
        self._queue: asyncio.Queue[VersionedConfiguration | None] = asyncio.Queue()
        for each in first:
            self._queue.put_nowait(each)

    def tell(self, configuration: VersionedConfiguration) -> None:
        self._queue.put_nowait(configuration)

    async def changes(self) -> AsyncIterator[VersionedConfiguration]:
        while (found := await self._queue.get()) is not None:
            yield found

    async def close(self) -> None:
        self._queue.put_nowait(None)


def versioned(configuration: RingConfiguration, version: int = 1) -> VersionedConfiguration:
    return VersionedConfiguration(version, configuration_digest(configuration), configuration)


class Ring:
    """Receivers by name; each can be stopped and come back at its port."""

    def __init__(self, environment: Environment, storage: MemoryStorage | None = None) -> None:
        self._environment = environment
        self.storage = storage or MemoryStorage()
        self.receivers: dict[str, Receiver] = {}
        self.ports: dict[str, int] = {}

    async def start(self, name: str, sink: Sink | None = None) -> None:
        receiver = Receiver(
            self._environment,
            sink or MemorySink(self.storage),
            secret_of=_secret_of,
            limits=ReceiverLimits(),
            metrics=Metrics(receiver=name),
        )
        # None that a connection may take while the receiver is away.
        port = self.ports.get(name) or free_ports(1)[0]
        self.ports[name] = await receiver.listen("127.0.0.1", port)
        self.receivers[name] = receiver

    async def stop(self, name: str) -> None:
        await self.receivers.pop(name).close(drain_ms=0)

    async def close(self) -> None:
        for name in list(self.receivers):
            await self.stop(name)

    def configuration(self, *, ha: HaRules = QUICK, version: int = 1) -> VersionedConfiguration:
        servers = [LogServer("127.0.0.1", port, name=name) for name, port in self.ports.items()]
        return versioned(RingConfiguration(tuple(servers), ha=ha), version)


def _secret_of(identity: Identity) -> Secret | None:
    return Secret(SECRET) if identity.node_id == KEY else None
