"""The suite of `Bookies` on bookies in this process and over the network, simulated and real."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.local_bookies import LocalBookies
from raftwood.dlog.ledgers.seams import Bookies
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.bookie_servers import BookieServers
from tests.kits.dlog.bookies_suite import BookiesSuite, Scenario
from tests.kits.ports import free_ports


class MixedServers(BookieServers):
    """The first is reached over the network, the second one in this process."""

    def client(self) -> Bookies:
        return LocalBookies({self.ids[1]: self.local[self.ids[1]]}, super().client())


async def run_scenario(
    environment: Environment,
    folder: str,
    scenario: Scenario,
    ids: list[str],
    *,
    is_remote: bool,
    kind: type[BookieServers] = BookieServers,
) -> None:
    store = await FileMetaStore.open(environment, f"{folder}/meta")
    servers = kind(environment, store, folder, ids, is_remote=is_remote)
    try:
        await servers.start_all()
        bookies = servers.client()
        try:
            await scenario(servers, bookies, servers.ids[0])
        finally:
            await bookies.close()
    finally:
        await servers.close()
        await store.close()


class TestLocal(BookiesSuite):
    def run(self, scenario: Scenario) -> None:
        async def main(simulation: Simulation) -> None:
            await run_scenario(
                simulation.environment, "/data", scenario, ["first", "second"], is_remote=False
            )

        simulate(1, main)


class TestRemote(BookiesSuite):
    def run(self, scenario: Scenario) -> None:
        async def main(simulation: Simulation) -> None:
            ids = ["127.0.0.1:3181", "127.0.0.1:3182"]
            await run_scenario(simulation.environment, "/data", scenario, ids, is_remote=True)

        simulate(1, main)


class TestMixed(BookiesSuite):
    def run(self, scenario: Scenario) -> None:
        async def main(simulation: Simulation) -> None:
            ids = ["127.0.0.1:3181", "127.0.0.1:3182"]
            await run_scenario(
                simulation.environment, "/data", scenario, ids, is_remote=True, kind=MixedServers
            )

        simulate(1, main)


class TestRemoteOnRealFilesAndSockets(BookiesSuite):
    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path: Path) -> None:
        self.folder = str(tmp_path)
        self.ids = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def run(self, scenario: Scenario) -> None:
        with real_environment() as environment:
            asyncio.run(run_scenario(environment, self.folder, scenario, self.ids, is_remote=True))
