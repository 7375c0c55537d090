"""The meta server of simulated nodes: its real rules and plans, in one place that links lead to.

It has one store, so that nothing is lost; but its leader's time may begin anew, and nodes that are
cut off do not reach it.
"""

import asyncio

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.simulation import Simulation
from raftwood.zeppelin.meta.changes import ChangeMaster, EndHandover, encode_batch
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import PartitionId, Table, Topology

SETTINGS = ZeppelinMetaSettings(
    heartbeat_ms=100,
    lease_ms=600,
    down_ms=800,
    plan_ms=50,
    handover_every_ms=100,
    handover_stuck_ms=700,
    handover_pause_ms=1_000,
)
LINK_S = (0.001, 0.03)
_GROUP = 1


class _Command:
    def __init__(self, index: int, payload: bytes) -> None:
        self.index, self.payload = index, payload


class MetaGroup:
    """Lives outside of all machines."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.random = simulation.loop.random_of("meta")
        self.term = 1
        self.cut_off: dict[str, None] = {}
        self.machine = MetaMachine(
            SETTINGS, now_ms=lambda: int(simulation.now * 1000), term=lambda: self.term
        )
        self._index = 0
        self.failovers = 0
        self.handovers = 0
        self.masters: dict[PartitionId, list[tuple[float, str | None]]] = {}
        """Since when a machine is master."""
        self.client = self.client_of("outside")

    @property
    def topology(self) -> Topology:
        return self.machine.topology

    def client_of(self, name: str) -> MetaClient:
        """For whoever is on a machine."""
        return MetaClient(MetaLink(self, name), _GROUP)

    def table(self, incarnation: int) -> Table | None:
        tables = self.topology.tables.values()
        return next((each for each in tables if each.incarnation == incarnation), None)

    def machine_of(self, partition: PartitionId) -> str | None:
        """Where the master is."""
        table = self.table(partition.incarnation)
        master = None if table is None else table.partitions[partition.number].master
        if master is None:
            return None
        return self.topology.nodes[master].addresses.data.partition(":")[0]

    def partitions(self) -> list[PartitionId]:
        return [
            PartitionId(table.incarnation, number)
            for table in self.topology.tables.values()
            for number in range(len(table.partitions))
        ]

    def was_master(self, partition: PartitionId, machine: str, since: float, until: float) -> bool:
        """At some moment between two."""
        reigns = self.masters[partition]
        ends = [began for began, _ in reigns[1:]] + [until + 1]
        return any(
            name == machine and began <= until and end >= since
            for (began, name), end in zip(reigns, ends, strict=True)
        )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SETTINGS.plan_ms / 1000)
            changes = self.machine.plan()
            self.failovers += sum(
                isinstance(each, ChangeMaster) and each.master is not None for each in changes
            )
            self.handovers += sum(isinstance(each, EndHandover) for each in changes)
            if changes:
                self.apply(encode_batch(changes))

    def apply(self, command: bytes) -> bytes:
        self._index += 1
        (result,) = self.machine.update([_Command(self._index, command)])
        for partition in self.partitions():
            reigns = self.masters.setdefault(partition, [])
            master = self.machine_of(partition)
            if not reigns or reigns[-1][1] != master:
                reigns.append((self._simulation.now, master))
        return result


class MetaLink:
    """A `GroupClient`: the way from one machine."""

    def __init__(self, group: MetaGroup, name: str) -> None:
        self._group = group
        self._name = name

    async def propose(self, group: int, command: bytes, *, timeout_ms: int) -> bytes:  # noqa: ARG002
        await self._travel(timeout_ms)
        result = self._group.apply(command)
        await self._travel(timeout_ms)
        return result

    async def read(self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0) -> bytes:  # noqa: ARG002
        await self._travel(timeout_ms)
        machine = self._group.machine
        if wait_ms:
            await machine.wait(query, wait_ms)
        answer = machine.lookup(query)
        if isinstance(answer, RaftwoodError):
            raise answer
        await self._travel(timeout_ms)
        return answer

    async def _travel(self, timeout_ms: int) -> None:
        await asyncio.sleep(self._group.random.uniform(*LINK_S))
        if self._name in self._group.cut_off:
            await asyncio.sleep(timeout_ms / 1000)
            raise DeadlineExceeded(f"{self._name} is cut off from the meta server")
