"""A node's machine: the whole server on simulated disks, network and clocks."""

import asyncio

from raftwood.base.environment import Environment
from raftwood.net import ClientLimits, Secret
from raftwood.testing import Machine
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.admin_protocol import NodeNetwork
from raftwood.zeppelin.node.server import NodeServer
from raftwood.zeppelin.replication.peers import ReplicationNetwork
from raftwood.zeppelin.replication.replica import PartitionReplica
from raftwood.zeppelin.settings import StoreSettings, ZeppelinNodeSettings
from tests.kits.zeppelin.engines import FileEngines
from tests.kits.zeppelin.simulation.meta import SETTINGS, MetaGroup
from tests.kits.zeppelin.stores import LOG

DATA_PORT = 7_000
FOLDER = "/data/node"
NETWORK = NodeNetwork(
    replication=ReplicationNetwork(
        cluster="simulated",
        secret=Secret(b"of all nodes in here"),
        limits=ClientLimits(connect_timeout_ms=1_000, ping_interval_ms=500, ping_timeout_ms=500),
    ),
    operators=Secret(b"of operators in here"),
)


class NodeMachine:
    """Started and broken by a world; `server` is there while it serves."""

    def __init__(self, machine: Machine, meta: MetaGroup, store_settings: StoreSettings) -> None:
        self.machine = machine
        self._meta = meta
        self._store_settings = store_settings
        self.server: NodeServer | None = None
        self.is_retired = False
        """It has left, and is not started again by whoever broke it."""

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def now_ms(self) -> int:
        return self.machine.clock.wall_ns() // 1_000_000

    def start(self) -> None:
        """After a crash or for the first time; nothing where it runs."""
        if not self.machine.running and not self.is_retired:
            self.machine.start(self._program)

    def stop(self) -> None:
        """As a signal asks it to."""
        process = self.machine.node.process
        if process is not None and process.main is not None:
            process.main.cancel()

    async def _program(self, environment: Environment) -> None:
        server = await NodeServer.start(
            environment,
            ZeppelinNodeSettings(
                data_folder=FOLDER,
                listen=f"0.0.0.0:{DATA_PORT}",
                replication_listen=f"0.0.0.0:{DATA_PORT + 1}",
                admin_listen=f"0.0.0.0:{DATA_PORT + 2}",
                advertise_host=self.name,
            ),
            self._meta.client_of(self.name),
            network=NETWORK,
            engines=FileEngines(environment.files, environment.random, f"{FOLDER}/engines"),
            meta_settings=SETTINGS,
            store_settings=self._store_settings,
            log_settings=LOG,
        )
        self.server = server
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.server = None
            await server.close()

    def break_down(self, *, loses_power: bool) -> None:
        """What was not synced may be lost with the power."""
        self.server = None
        if loses_power:
            self.machine.power_off()
        else:
            self.machine.kill()

    def replica(self, partition: PartitionId) -> PartitionReplica | None:
        return None if self.server is None else self.server.admin.replicator.replica(partition)

    def held(self) -> list[PartitionId]:
        return [] if self.server is None else sorted(self.server.admin.store.held())

    def problem(self) -> str:
        return "down" if self.server is None else self.server.problem()
