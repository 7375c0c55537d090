"""Stores with a raft host each, in a simulation, for tests of single capabilities."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.disk.segment_log import LogSettings
from raftwood.net import Secret, Server, Service
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.stores import ClientNetwork
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, StateMachine, Stopped
from raftwood.raft.transport import HostNetwork
from raftwood.testing import Machine, Simulation, simulate

GROUP = 1
NETWORK = HostNetwork(
    cluster="test",
    secret=Secret(b"of the stores" * 3),
    client_secret=Secret(b"of clients" * 3),
    operator_secret=Secret(b"of operators" * 3),
)
CLIENT = ClientNetwork(cluster="test", secret=Secret(b"of clients" * 3))
OPERATOR = ClientNetwork(cluster="test", secret=Secret(b"of operators" * 3), role=OPERATOR_ROLE)
SETTINGS = RaftHostSettings(
    message_bytes_max=4 << 10,
    in_flight_bytes_max=8 << 10,
    snapshot_entries=0,
    entry_cache_bytes_max=1 << 10,
)
LOG_SETTINGS = LogSettings(
    segment_bytes=64 << 10, flush_bytes_max=8 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)


def address(store: int) -> str:
    return f"s{store}:7000"


class Lines:
    """A state machine that keeps every command in order; answers how many there are."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        results = []
        for command in commands:
            self.lines.append(command.payload)
            results.append(b"%d" % len(self.lines))
        return results

    def lookup(self, query: bytes) -> bytes:
        return b"%d" % len(self.lines) if query == b"count" else msgspec.msgpack.encode(self.lines)

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        lines = list(self.lines)
        for start in range(0, len(lines), 10):
            yield msgspec.msgpack.encode(lines[start : start + 10])

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,  # noqa: ARG002
    ) -> None:
        self.lines = []
        async for chunk in chunks:
            self.lines += msgspec.msgpack.decode(chunk, type=list[bytes])

    def close(self) -> None:
        pass


class Cluster:
    """Stores by number; `hosts` are for looking only, calls go over the network."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        settings: RaftHostSettings = SETTINGS,
        log_settings: LogSettings = LOG_SETTINGS,
        members: Sequence[int] = (1, 2, 3),
        groups: Sequence[int] = (GROUP,),
        machine: Callable[[Environment], StateMachine] = lambda _: Lines(),
    ) -> None:
        self.simulation = simulation
        self.settings = settings
        self.log_settings = log_settings
        self.members = {store: address(store) for store in members}
        self.groups = groups
        self.machine = machine
        self.hosts: dict[int, NodeHost] = {}
        self.machines: dict[int, Machine] = {}
        self.folders: dict[int, str] = {}
        """Where not the usual one: a store whose disk was wiped has an empty folder."""
        self.names: dict[int, str] = {}
        """Of machines, where not the usual ones."""

    def start(self, *stores: int, joins: bool = False) -> None:
        for store in stores:
            if store not in self.machines:
                self.machines[store] = self.simulation.add_node(f"s{store}")
            self.hosts.pop(store, None)
            self.machines[store].start(self._program(store, joins=joins))

    def _program(
        self, store: int, *, joins: bool
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        async def program(environment: Environment) -> None:
            host = await NodeHost.open(
                environment,
                self.folders.get(store, "/data/store"),
                cluster="test",
                store=store,
                network=NETWORK,
                settings=self.settings,
                log_settings=self.log_settings,
                peers=self.members,
            )
            self.hosts[store] = host
            service = Service()
            host.register(service)
            RaftService(host).register(service)
            async with Server(
                service, NETWORK.server_credentials(store), environment.random
            ) as server:
                try:
                    await server.listen(self.names.get(store, f"s{store}"), 7000)
                    for group in self.groups:
                        members = None if joins else self.members
                        factory = partial(self.machine, environment)
                        await host.start_group(group, factory, members=members)
                    await asyncio.get_running_loop().create_future()
                finally:
                    # As a store's process does it: the next leader has to reach this one.
                    await host.close(hand_over_ms=2_000)

        return program

    def client(self, *stores: int) -> AsyncRaftClient:
        addresses = {store: address(store) for store in stores or self.members}
        return AsyncRaftClient(self.simulation.environment, OPERATOR, addresses)

    def leader(self, group: int = GROUP) -> int:
        leading = [
            store
            for store, machine in self.machines.items()
            if machine.running
            and self.has_group(store, group)
            and self.hosts[store].is_leading(group)
        ]
        return leading[0] if len(leading) == 1 else 0

    async def wait_for_leader(self, group: int = GROUP) -> int:
        await self.until(lambda: self.leader(group) != 0)
        return self.leader(group)

    async def until(self, is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
        await self.simulation.wait_until(is_true, timeout_s=timeout_s)

    def lines(self, store: int, group: int = GROUP) -> list[bytes]:
        return msgspec.msgpack.decode(self.hosts[store].stale_read(group, b"all"), type=list[bytes])

    def has_group(self, store: int, group: int = GROUP) -> bool:
        return store in self.hosts and group in self.hosts[store].groups()

    async def agree(self, *stores: int, group: int = GROUP) -> list[bytes]:
        """Wait until stores hold the same lines, and answer these."""
        first, *others = stores

        def do_agree() -> bool:
            if any(
                store not in self.hosts or group not in self.hosts[store].groups()
                for store in stores
            ):
                return False
            try:
                lines = self.lines(first, group)
                return all(self.lines(other, group) == lines for other in others)
            except Unavailable:
                return False  # one is being restored

        await self.until(do_agree)
        return self.lines(first, group)

    async def stop(self, *stores: int) -> None:
        """An orderly end, so that a task or file left open shows as a leak."""
        chosen = [self.machines[store] for store in stores or self.machines]
        for machine in chosen:
            process = machine.node.process
            if machine.running and process is not None and process.main is not None:
                process.main.cancel()
        await self.until(lambda: not any(machine.running for machine in chosen))


def run_cluster(
    scenario: Callable[[Cluster], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    cluster_type: type[Cluster] = Cluster,
    **options: Any,
) -> None:
    """Run a scenario on a new cluster; the stores are stopped at its end."""

    async def whole(simulation: Simulation) -> None:
        cluster = cluster_type(simulation, **options)
        await scenario(cluster)
        await cluster.stop()

    simulate(seed, whole, virtual_seconds_max=600.0)


async def write(client: AsyncRaftClient, count: int, *, start: int = 0, group: int = GROUP) -> None:
    """Propose numbered lines, some at a time."""
    for first in range(start, start + count, 20):
        futures = [
            client.propose(group, b"line %d" % number, timeout_ms=30_000)
            for number in range(first, min(first + 20, start + count))
        ]
        await asyncio.gather(*futures)
