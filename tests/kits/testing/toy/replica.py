"""A replica: the latest version of each key, durable before it is acked or shown."""

import asyncio

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, StoreError
from raftwood.disk.segment_log import LogSettings, Run, SegmentLog, TruncateHead
from raftwood.disk.store import Store
from raftwood.net import Call, Server, Service
from tests.kits.testing.toy.protocol import (
    CLUSTER,
    QUERY,
    SERVER_LIMITS,
    STORE,
    StoreRequest,
    Timestamp,
    Versioned,
    server_credentials,
)

# The smallest segments, so that a short run fills, seals and compacts some.
SETTINGS = LogSettings(
    segment_bytes=16 << 10, flush_bytes_max=4 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)
_FULL_RETRY_S = 0.5
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Versioned).decode


class ReplicaAddress(msgspec.Struct, frozen=True):
    """Where a replica listens, and the number of its store."""

    name: str
    number: int
    host: str
    port: int


class Replica:
    """Answers from what is durable; each key is a group of the log."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._durable: dict[int, Versioned] = {}
        self._written: dict[int, Timestamp] = {}
        """What the log has, durable or not yet; only later versions go behind it."""
        self.service = Service()
        self.service.typed(QUERY, self._query)
        self.service.typed(STORE, self._store)

    async def recover(self) -> None:
        for key in self._log.groups():
            bounds = self._log.bounds(key)
            if bounds.next_index > bounds.head:
                run = (await self._log.read(key, bounds.next_index - 1))[-1]
                self._recovered(key, _decode(run.payload))

    def _recovered(self, key: int, versioned: Versioned) -> None:
        self._durable[key] = versioned
        self._written[key] = versioned.timestamp

    async def _query(self, _call: Call, key: int) -> Versioned:
        return self._durable.get(key, Versioned())

    async def _store(self, _call: Call, request: StoreRequest) -> bool:
        if not self._is_later(request):
            # The later one may not be durable yet, and an ack promises that it is.
            await self._log.sync()
            return True
        durable = asyncio.Event()

        def became_durable() -> None:
            self._durable[request.key] = request.versioned
            durable.set()

        self._log.write(self._records(request), became_durable)
        self._written[request.key] = request.versioned.timestamp
        await durable.wait()
        return True

    def _is_later(self, request: StoreRequest) -> bool:
        return request.versioned.timestamp > self._written.get(request.key, Timestamp())

    def _records(self, request: StoreRequest) -> tuple[Run, TruncateHead]:
        """The version, and with it the end of the ones before."""
        key = request.key
        index = self._log.bounds(key).next_index if key in self._written else 1
        run = Run(key, request.versioned.timestamp.counter, index, 1, _encode(request.versioned))
        return run, TruncateHead(key, index - 1)


async def serve_replica(environment: Environment, address: ReplicaAddress, folder: str) -> None:
    """Run a replica until it is cancelled."""
    store = await _open_store(environment, address, folder)
    try:
        replica = Replica(store.log)
        await replica.recover()
        credentials = server_credentials(address.name)
        async with Server(
            replica.service, credentials, environment.random, SERVER_LIMITS
        ) as server:
            await server.listen(address.host, address.port)
            await asyncio.get_running_loop().create_future()
    finally:
        await store.close()


async def _open_store(environment: Environment, address: ReplicaAddress, folder: str) -> Store:
    while True:
        try:
            return await Store.open(
                environment, folder, cluster=CLUSTER, store=address.number, settings=SETTINGS
            )
        except DiskFull:
            await asyncio.sleep(_FULL_RETRY_S)
        except StoreError as error:
            if type(error) is not StoreError:
                raise  # damaged or locked: that must never come of a fault of this kind
            environment.end_process(f"cannot open the store: {error}")
