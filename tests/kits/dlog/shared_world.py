"""Processes that share logs, on simulated machines; ledgers in memory, the metastore on a disk."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from raftwood.base.environment import Environment
from raftwood.base.seams import KeyChange, MetaStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.peers import PEER_ROLE, PeerNetwork
from raftwood.dlog.settings import SharedDlogSettings
from raftwood.dlog.shared_logs import SharedLogs
from raftwood.metastore.file_store import FileMetaStore
from raftwood.net import Identity, Secret, Server, ServerCredentials, Service
from raftwood.testing import Machine, Simulation
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore
from tests.kits.models import run_scenario

Result = TypeVar("Result")
SECRET = Secret(b"of all who share" * 2)
NETWORK = PeerNetwork(cluster="test", secret=SECRET, server_role="gateway")
SETTINGS = SharedDlogSettings(lease_ms=2_000, timeout_ms=30_000, rotation_entries=50)


class OutsideMetaStore:
    """A metastore that outlives whoever calls it: what it does belongs to the scenario."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._context = contextvars.copy_context()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.create_task(method(*args, **options), context=self._context)

        return call

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        queue: asyncio.Queue[tuple[KeyChange, ...] | BaseException] = asyncio.Queue()

        async def follow() -> None:
            try:
                async for changes in self._store.watch(prefix, after_version=after_version):
                    queue.put_nowait(changes)
            except Exception as error:
                queue.put_nowait(error)

        task = asyncio.get_running_loop().create_task(follow(), context=self._context)
        try:
            while True:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            task.cancel()


class SharedWorld:
    """All machines, what they share, and the logs of those that run."""

    def __init__(
        self,
        simulation: Simulation,
        store: MetaStore,
        ledgers: MemoryLedgerStore,
        settings: SharedDlogSettings,
    ) -> None:
        self.simulation = simulation
        self.store: Any = OutsideMetaStore(store)
        self.ledgers = ledgers
        self._settings = settings
        self.machines: dict[str, Machine] = {}
        self.logs: dict[str, SharedLogs] = {}
        self._contexts: dict[str, contextvars.Context] = {}

    async def start(self, name: str) -> SharedLogs:
        """A process on a machine of this name, anew where there was one."""
        if name not in self.machines:
            self.machines[name] = self.simulation.add_node(name)
        self.logs.pop(name, None)
        self.machines[name].start(self._program(name))
        await self.simulation.wait_until(lambda: name in self.logs)
        return self.logs[name]

    def _program(self, name: str) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        async def program(environment: Environment) -> None:
            dlogs = Dlogs(environment, self.store, self.ledgers)
            me = f"{name}-{environment.random.randbytes(4).hex()}"
            logs = SharedLogs(
                environment,
                self.store,
                dlogs,
                NETWORK,
                name=me,
                settings=self._settings,
            )
            service = Service()
            logs.register(service)
            credentials = ServerCredentials(
                cluster_id="test",
                identity=Identity(role="gateway", node_id=me),
                secret_of=lambda peer: SECRET if peer.role == PEER_ROLE else None,
            )
            async with Server(service, credentials, environment.random) as server:
                await server.listen(name, 7000)
                try:
                    await logs.start(f"{name}:7000")
                    self._contexts[name] = contextvars.copy_context()
                    self.logs[name] = logs
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:  # Who is killed has no time for it.
                    await logs.close()
                    raise

        return program

    async def within(
        self, name: str, work: Coroutine[Any, Any, Result], *, timeout_s: float
    ) -> Result:
        """Done by the process itself, and dead or stopped with it; `TimeoutError` then."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, context=self._contexts[name])
        await asyncio.wait([task], timeout=timeout_s)
        if not task.done():
            raise TimeoutError
        return task.result()

    def owner(self, log: str) -> str:
        """The machine whose process owns a log; empty where none does."""
        for name, logs in self.logs.items():
            if self.machines[name].running and any(seat.name == log for seat in logs.seats.owned()):
                return name
        return ""

    async def stop(self) -> None:
        """An orderly end, so that a task left behind shows as a leak."""
        for machine in self.machines.values():
            process = machine.node.process
            if machine.running and process is not None and process.main is not None:
                process.main.cancel()
        await self.simulation.wait_until(
            lambda: not any(machine.running for machine in self.machines.values())
        )


def run_shared(
    scenario: Callable[[SharedWorld], Coroutine[Any, Any, Result]],
    *,
    seed: int = 1,
    settings: SharedDlogSettings = SETTINGS,
    delay_ms: float = 1,
    twice: bool = False,
) -> Result:
    async def whole(simulation: Simulation) -> Result:
        store = await FileMetaStore.open(simulation.environment, "meta")
        ledgers = MemoryLedgerStore(seed=seed, delay_ms=delay_ms, publish_ms=50)
        world = SharedWorld(simulation, store, ledgers, settings)
        result = await scenario(world)
        await world.stop()
        await ledgers.close()
        await store.close()
        await asyncio.sleep(0)
        return result

    return run_scenario("owners", seed, whole, twice=twice).result
