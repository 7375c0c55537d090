"""One store of Raftwood for benchmarks: many groups of a state machine that only counts."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.net import Call, Secret, Server, Service, TypedMethod
from raftwood.net.stores import ClientNetwork
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped
from raftwood.raft.transport import HostNetwork
from raftwood.server.event_loop import run

STORES_SECRET = Secret(b"known to the benchmark's stores alone")
CLIENTS_SECRET = Secret(b"known to the benchmark's clients too")
NETWORK = HostNetwork(cluster="benchmark", secret=STORES_SECRET, client_secret=CLIENTS_SECRET)
CLIENT_NETWORK = ClientNetwork(cluster="benchmark", secret=CLIENTS_SECRET)
LEADERS = TypedMethod(60_000, "leaders", request=int, response=list[int])
"""The store that leads each of the groups; 0 for none."""


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        self.count += len(commands)
        return [b""] * len(commands)

    def lookup(self, _: bytes) -> bytes:
        return b"%d" % self.count

    def save_snapshot(self, _: ExtraFiles, __: Stopped) -> Iterator[bytes]:
        yield b"%d" % self.count

    async def recover_from_snapshot(
        self, chunks: AsyncIterator[bytes], _: Mapping[str, str], __: Stopped
    ) -> None:
        self.count = int(b"".join([chunk async for chunk in chunks]))

    def close(self) -> None:
        pass


async def serve(
    environment: Environment, store: int, addresses: list[str], folder: str, groups: int
) -> None:
    host = await NodeHost.open(
        environment,
        folder,
        cluster="benchmark",
        store=store,
        network=NETWORK,
        # As the peers are measured: without snapshots.
        settings=RaftHostSettings(snapshot_entries=0),
    )
    service = Service()
    host.register(service)
    RaftService(host).register(service)

    async def leaders(_: Call, count: int) -> list[int]:
        running = set(host.groups())
        return [host.leader(group) if group in running else 0 for group in range(1, count + 1)]

    service.typed(LEADERS, leaders)
    async with Server(service, NETWORK.server_credentials(store), environment.random) as server:
        name, _, port = addresses[store - 1].rpartition(":")
        await server.listen(name, int(port))
        members = dict(enumerate(addresses, 1))
        for group in range(1, groups + 1):
            await host.start_group(group, Counter, members=members)
        await asyncio.get_running_loop().create_future()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=int, required=True)
    parser.add_argument("--addresses", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--groups", type=int, required=True)
    given = parser.parse_args()
    with real_environment() as environment:
        run(serve(environment, given.store, given.addresses.split(","), given.folder, given.groups))


if __name__ == "__main__":
    main()
