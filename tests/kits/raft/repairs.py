"""Repairs while stores crash: whatever is damaged and whoever goes, nothing acked is lost."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.node_host import NodeHost
from raftwood.testing import Machine
from tests.kits.raft.damage import HaltingCluster, flip_text, is_whole, log_files, snapshots_of
from tests.kits.raft.damaged_stores import SMALL_SNAPSHOTS, lose_log
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster

_ROUNDS = 3


class Writer:
    """Writes lines one by one for as long as the test lasts, and notes what was acked."""

    def __init__(self, client: AsyncRaftClient, acked: list[bytes]) -> None:
        self._client = client
        self.acked = acked
        self.tried = 0

    async def run(self) -> None:
        while True:
            line = b"line %d" % self.tried
            self.tried += 1
            try:
                await self._client.propose(GROUP, line, timeout_ms=3_000)
                self.acked.append(line)
            except DeadlineExceeded:
                continue  # it may have been done, or be done later
            await asyncio.sleep(0.01)


class ReadingCluster(HaltingCluster):
    """Stores that read all they have when asked to, in their own processes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.to_read: dict[int, None] = {}

    def _program(
        self, store: int, *, joins: bool
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        program = super()._program(store, joins=joins)

        async def reading(environment: Environment) -> None:
            reader = asyncio.create_task(self._read_when_asked(store))
            try:
                await program(environment)
            finally:
                reader.cancel()

        return reading

    async def _read_when_asked(self, store: int) -> None:
        while True:
            await asyncio.sleep(0.05)
            if store in self.to_read and self.has_group(store):
                with contextlib.suppress(RaftwoodError):
                    await _read_all(self.hosts[store])
                # Only now: whoever crashed meanwhile reads again, and no damage is forgotten.
                self.to_read.pop(store, None)


async def _read_all(host: NodeHost) -> None:
    replica = host._replicas[GROUP]
    with host._chores.halting(replica):
        await host._snapshotting.verify(replica)
    first = host.status(GROUP).first_index
    while first <= host.status(GROUP).applied:
        _, first = await host.read_log(GROUP, first)


def _damage(cluster: ReadingCluster, store: int, chosen: random.Random) -> None:
    """Make one of a running store's files bad, in a way that it notices by reading; or lose its
    log, with the votes that it gave last, while it is away.
    """
    machine = cluster.machines[store]
    if chosen.random() < 0.4:
        machine.power_off()
        lose_log(machine)
        cluster.start(store)
        return
    snapshots = snapshots_of(machine)
    segments = [path for path in log_files(machine, ".segment") if _has_lines(machine, path)]
    if snapshots and chosen.random() < 0.5:
        machine.disk.cut(snapshots[-1], length=40)
    elif segments:
        flip_text(machine, segments[-1], b"line ")
    cluster.to_read[store] = None


def _has_lines(machine: Machine, path: str) -> bool:
    return b"line " in machine.disk.file_system.contents(path)


async def _crash_some(cluster: ReadingCluster, chosen: random.Random, seconds: float) -> None:
    end = cluster.simulation.now + seconds
    while cluster.simulation.now < end:
        await asyncio.sleep(chosen.uniform(0.05, 1.5))
        store = chosen.choice((1, 2, 3))
        if store in cluster.halts:
            continue
        cluster.machines[store].power_off()
        await asyncio.sleep(chosen.uniform(0.05, 1.0))
        cluster.start(store)


def _is_calm(cluster: ReadingCluster) -> bool:
    """No repair is under way: another store's damage would leave the group without a quorum."""
    is_whole_everywhere = all(is_whole(cluster, store) for store in (1, 2, 3))
    return bool(cluster.halts) or (is_whole_everywhere and not cluster.to_read)


def run_repairs(seed: int) -> int:
    """Damage, crashes and repairs under writes; answers how many writes were acked."""
    acked: list[bytes] = []

    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, ReadingCluster)
        chosen = random.Random(seed)
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            writer = Writer(client, acked)
            writing = asyncio.create_task(writer.run())
            await asyncio.sleep(3)
            for _ in range(_ROUNDS):
                await cluster.until(lambda: _is_calm(cluster), 200.0)
                store = chosen.choice((1, 2, 3))
                if not cluster.halts:
                    _damage(cluster, store, chosen)
                await _crash_some(cluster, chosen, 6.0)
                # What nobody needed to read is found by a start.
                await cluster.until(lambda: _is_calm(cluster), 200.0)
                if store not in cluster.halts:
                    cluster.machines[store].power_off()
                    cluster.start(store)
                    await asyncio.sleep(1)
            writing.cancel()
            await asyncio.wait([writing])
            await client.propose(GROUP, b"the end", timeout_ms=60_000)
        serving = [store for store in (1, 2, 3) if store not in cluster.halts]
        assert len(serving) >= 2, "one was damaged at a time, and halts before the next one"
        await cluster.until(lambda: all(is_whole(cluster, store) for store in serving), 200.0)
        await cluster.until(lambda: all(b"the end" in cluster.lines(each) for each in serving))
        lines = await cluster.agree(*serving)
        assert not set(writer.acked) - set(lines)
        assert len(lines) == len(set(lines))
        tried = {b"line %d" % number for number in range(writer.tried)}
        assert set(lines) <= {*tried, b"the end"}

    run_cluster(scenario, seed=seed, settings=SMALL_SNAPSHOTS, cluster_type=ReadingCluster)
    return len(acked)
