"""The meta server of simulated nodes: its real rules and plans, in one place that links lead to.

It has one store at a time. The next one has what was replicated, by a snapshot, and nothing of what
the last one heard; nodes that are cut off do not reach it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from raftwood.base.errors import DeadlineExceeded, NotFound, RaftwoodError
from raftwood.testing import Simulation
from raftwood.zeppelin.meta.changes import (
    Change,
    ChangeMaster,
    EndHandover,
    decode_applied,
    decode_batch,
    encode_batch,
)
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import NodeId, Partition, PartitionId, Table, Topology
from raftwood.zeppelin.settings import ZeppelinMetaSettings

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


class _NoFiles:
    def add(self, name: str, path: str) -> None:
        raise AssertionError(f"the meta server has no files: {name}, {path}")


class MetaGroup:
    """Lives outside of all machines."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.random = simulation.loop.random_of("meta")
        self.term = 1
        self._led_from = 0.0
        self.cut_off: dict[str, None] = {}
        self.machine = self._new_machine()
        self._index = 0
        self.failovers = 0
        self.handovers = 0
        self.masters: dict[PartitionId, list[tuple[float, str | None]]] = {}
        """Since when a machine is master."""
        self.watchers: list[Callable[[tuple[Change, ...]], None]] = []
        """Each hears which changes were made, when they are."""
        self.client = self.client_of("outside")

    def _new_machine(self) -> MetaMachine:
        return MetaMachine(
            SETTINGS, now_ms=lambda: int(self._simulation.now * 1000), term=lambda: self.term
        )

    async def change_leader(self, *, after_s: float = 0.0) -> None:
        """The leader dies; after some time in which nobody is asked, another store leads."""
        before, after = self.machine, self._new_machine()

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in before.save_snapshot(_NoFiles(), lambda: False):
                yield chunk

        # Nothing is waited for in here, so nothing is changed meanwhile.
        await after.recover_from_snapshot(chunks(), {}, lambda: False)
        self.term += 1
        self.machine = after
        self._led_from = self._simulation.now + after_s
        before.close()

    @property
    def leaderless_s(self) -> float:
        """For so long nobody leads."""
        return max(0.0, self._led_from - self._simulation.now)

    @property
    def topology(self) -> Topology:
        return self.machine.topology

    def client_of(self, name: str) -> MetaClient:
        """For whoever is on a machine."""
        return MetaClient(MetaLink(self, name), _GROUP)

    def table(self, incarnation: int) -> Table | None:
        tables = self.topology.tables.values()
        return next((each for each in tables if each.incarnation == incarnation), None)

    def partition(self, partition: PartitionId) -> Partition | None:
        table = self.table(partition.incarnation)
        return None if table is None else table.partitions[partition.number]

    def machine_of(self, partition: PartitionId) -> str | None:
        """Where the master is."""
        known = self.partition(partition)
        if known is None or known.master is None:
            return None
        return self.name_of(known.master)

    def machines_of(self, partition: PartitionId) -> list[str]:
        """Where its replicas are."""
        known = self.partition(partition)
        return [] if known is None else [self.name_of(node) for node in known.replicas]

    def name_of(self, node: NodeId) -> str:
        return self.topology.nodes[node].addresses.data.partition(":")[0]

    def node_on(self, machine: str) -> NodeId:
        for node in self.topology.nodes:
            if self.name_of(node) == machine:
                return node
        raise NotFound(f"no node on {machine} has registered")

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
            await self.machine.wait_for_plan(SETTINGS.plan_ms / 1000)
            if self.leaderless_s > 0:
                await asyncio.sleep(self.leaderless_s)
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
        if self.watchers:
            results = decode_applied(result).results
            made = zip(decode_batch(command), results, strict=True)
            changes = tuple(change for change, refused in made if refused is None)
            for watcher in self.watchers:
                watcher(changes)
        return result


class MetaLink:
    """A `MetaGroupClient`: the way from one machine."""

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
        if wait_ms:
            await self._group.machine.wait(query, wait_ms)
            await self._reach_leader(timeout_ms)
        answer = self._group.machine.lookup(query)
        if isinstance(answer, RaftwoodError):
            raise answer
        await self._travel(timeout_ms)
        return answer

    async def heartbeat(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> bytes:
        return await self.read(group, query, timeout_ms=timeout_ms, wait_ms=wait_ms)

    async def _travel(self, timeout_ms: int) -> None:
        await asyncio.sleep(self._group.random.uniform(*LINK_S))
        if self._name in self._group.cut_off:
            await asyncio.sleep(timeout_ms / 1000)
            raise DeadlineExceeded(f"{self._name} is cut off from the meta server")
        await self._reach_leader(timeout_ms)

    async def _reach_leader(self, timeout_ms: int) -> None:
        missing_s = self._group.leaderless_s
        if missing_s > 0:
            await asyncio.sleep(min(missing_s, timeout_ms / 1000))
        if missing_s > timeout_ms / 1000:
            raise DeadlineExceeded("nobody leads the meta server")
