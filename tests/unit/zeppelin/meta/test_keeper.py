"""When the leader's next plan is made: after its pause, or at once where writes wait for it."""

import asyncio
from typing import Any

from raftwood.zeppelin.meta.changes import BeginHandover, encode_batch
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.heartbeats import NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.state_machine import MetaKeeper
from raftwood.zeppelin.model import NodeId, Partition, TableConfig
from raftwood.zeppelin.settings import ZeppelinMetaSettings
from tests.kits.running import in_virtual_time
from tests.kits.zeppelin.meta.group_in_memory import GROUP, GroupInMemory
from tests.kits.zeppelin.meta.tables import A, B, registered

PAUSE_S = 10.0
"""No test waits for so long."""


class Kept(GroupInMemory):
    """A group with a keeper, as one that seldom plans by itself."""

    async def tell(self, node: NodeId, sequence: int, applied: int | None = None) -> None:
        table = self.machine.topology.tables["t"]
        offset = ReplicaOffset(table.incarnation, 0, 1, sequence, contact_ms=0)
        epoch = self.machine.topology.epoch if applied is None else applied
        heartbeat = NodeHeartbeat(node, 1, epoch, (offset,))
        await MetaClient(self, GROUP).heartbeat(heartbeat, timeout_ms=1_000)

    @property
    def partition(self) -> Partition:
        return self.machine.topology.tables["t"].partitions[0]


class _Host:
    def __init__(self, group: Kept) -> None:
        self._group = group
        self.groups, self.is_leading, self.propose = group.groups, group.is_leading, group.propose

    def machine(self, _: int) -> Any:
        return self._group.machine


async def _begun() -> Kept:
    """A table whose master `a` is being handed over to `b`."""
    group = Kept()
    client = MetaClient(group, GROUP)
    await client.apply(registered(A), registered(B))
    await client.create_table("t", TableConfig(partitions=1, replicas=2))
    for node in (A, B):
        await group.tell(node, 5)
    group.plan()
    group.plan()
    master = group.partition.master
    assert master is not None
    (slave,) = group.partition.slaves
    begun = BeginHandover("t", 0, group.partition.epoch, slave)
    await group.propose(GROUP, encode_batch((begun,)), timeout_ms=1)
    assert group.partition.target == slave
    return group


def test_a_hand_over_ends_as_soon_as_both_have_told_where_they_are() -> None:
    async def main() -> None:
        group = await _begun()
        master, target = group.partition.master, group.partition.target
        assert master is not None
        assert target is not None
        keeper = MetaKeeper(_Host(group), GROUP, ZeppelinMetaSettings(plan_ms=int(1_000 * PAUSE_S)))
        working = asyncio.create_task(keeper.run())
        await asyncio.sleep(0)
        before = group.partition.epoch - 1
        # Told before it froze, or before the target knows that it will be master.
        for node, sequence, applied in (
            (master, 6, before),
            (target, 6, before),
            (master, 7, None),
            (target, 7, before),
        ):
            await group.tell(node, sequence, applied)
            await asyncio.sleep(0.02)
            assert group.partition.target == target
        await group.tell(target, 7)
        async with asyncio.timeout(PAUSE_S / 2):
            while group.partition.master != target:  # noqa: ASYNC110  the keeper changes it
                await asyncio.sleep(0.005)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    in_virtual_time(main())


def test_what_is_told_again_is_no_reason_to_plan() -> None:
    async def main() -> None:
        group = await _begun()
        target = group.partition.target
        assert target is not None
        await group.tell(target, 6)
        group.machine.plan()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await group.tell(target, 6)
        await group.machine.wait_for_plan(0.05)
        assert loop.time() - began >= 0.05
        await group.tell(target, 7)
        await group.machine.wait_for_plan(PAUSE_S)
        assert loop.time() - began < PAUSE_S / 2

    in_virtual_time(main())
