"""The same with real logstores behind the receivers, whose shards are split and merged meanwhile.

The gateways and their receivers are where nothing breaks; shippers, their disks and the network are
not. What the gateways' logs promise is simulated elsewhere, in `tests/simulation/loghub`.
"""

import asyncio

from raftwood.base.metrics import Metrics
from raftwood.clogs.client.server_pool import ShipperCredentials
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.clogs.receiver_settings import parsed_routes
from raftwood.disk.segment_log import LogSettings
from raftwood.metastore.file_store import FileMetaStore
from raftwood.net import Secret
from raftwood.server.receiver import Routes, StreamSink
from raftwood.testing import FaultInjector, Simulation, SwarmProfile
from raftwood.testing.runner import SimulationReport
from tests.kits.clogs.ring import SECRET
from tests.kits.clogs.simulation.notebook import check_stored
from tests.kits.clogs.simulation.weather import PORT, Rings
from tests.kits.clogs.simulation.world import Plan, World
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import GatewayKit
from tests.kits.models import run_scenario
from tests.unit.server.test_clogs_sink import SETTINGS
from tests.unit.server.test_clogs_sink_storm import change_shards, values

_OUTSIDE = "outside"
_FAULTS = ("kill", "power_loss", "partition", "one_way_cut", "pause", "reset", "stall")
_SMALL = LogSettings(segment_bytes=256 << 10, cache_bytes_max=0)
_PLAN = Plan(receivers=0, faults_s=8.0, calm=0.5, pause_s=0.1)


class StreamWorld(World):
    """Two gateways, one of which hears late of what changes."""

    async def serve(self, kit: GatewayKit) -> list[Receiver]:
        environment = self.simulation.environment
        gateways = [await kit.gateway(), await kit.gateway()]
        await gateways[0].catalog.create_project("p")
        await gateways[0].catalog.create_logstore("p", "s", shard_count=1)
        key = (await kit.admin()).id
        await gateways[1].access.find(key)
        self.access = ShipperCredentials(key_id=key, secret=Secret(SECRET))
        receivers = []
        for number, gateway in enumerate(gateways):
            receiver = Receiver(
                environment,
                StreamSink(gateway, Routes(parsed_routes(SETTINGS))),
                secret_of=lambda _: Secret(SECRET),
                limits=ReceiverLimits(),
                metrics=Metrics(receiver=str(number)),
            )
            await receiver.listen(_OUTSIDE, PORT + number)
            receivers.append(receiver)
        addresses = {f"r{number}": (_OUTSIDE, PORT + number) for number in range(len(gateways))}
        self.rings = Rings(addresses, self.random)
        return receivers

    async def run(self, kit: GatewayKit) -> tuple[int, int]:
        """How many lines are stored, and in how many shards."""
        receivers = await self.serve(kit)
        await self.start()
        gateway, late = kit.gateways
        changing = asyncio.create_task(change_shards(gateway, late, self.random))
        profile = SwarmProfile.choose(self.simulation.seed, allowed=_FAULTS, calm=self.plan.calm)
        injector = FaultInjector(
            self.simulation, profile, machines=self.shippers, others=(_OUTSIDE,)
        )
        await injector.run(until=self.simulation.now + self.plan.faults_s)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        await self.settle()
        for receiver in receivers:
            await receiver.close(drain_ms=0)
        lines = [value.encode() for value in await values(gateway) if "|" in value]
        stored: dict[str, list[bytes]] = {}
        for line in lines:
            stored.setdefault(line.split(b"|")[0].decode(), []).append(line)
        check_stored(self.lives, stored, may_drop=False)
        return len(lines), len((await gateway.catalog.logstore("p", "s")).shards)


def run_streams(seed: int) -> SimulationReport[tuple[int, int]]:
    async def scenario(simulation: Simulation) -> tuple[int, int]:
        environment = simulation.environment
        store = await FileMetaStore.open(environment, "/data/meta", settings=_SMALL)
        kit = GatewayKit(environment, store, MemoryLogs())
        try:
            return await StreamWorld(simulation, _PLAN).run(kit)
        finally:
            for gateway in kit.gateways:
                await gateway.close()
            await store.close()

    return run_scenario("clogs", seed, scenario)
