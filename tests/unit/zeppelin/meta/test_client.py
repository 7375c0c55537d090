"""The meta server as operators, nodes and clients see it; and as a machine that raft replicates."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    NotLeader,
    PermissionDenied,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.zeppelin.meta.changes import (
    CancelMigration,
    CreateTable,
    DropTable,
    Migrate,
    NodeDown,
    decode_applied,
)
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.deltas import Delta, applied
from raftwood.zeppelin.meta.heartbeats import NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.state_machine import MetaKeeper, MetaMachine
from raftwood.zeppelin.model import Migration, NodeId, TableConfig, Topology, User
from raftwood.zeppelin.settings import ZeppelinMetaSettings
from tests.kits.running import in_virtual_time
from tests.kits.zeppelin.meta.group_in_memory import GROUP, Command, GroupInMemory
from tests.kits.zeppelin.meta.tables import A, B, C, registered

SETTINGS = ZeppelinMetaSettings()
PAIR = TableConfig(partitions=2, replicas=2)
GOLDEN = (
    b"RWZM\x01\x84\xa5epoch\x02\xa6tables\x81\xa1t\x84"
    b"\xa4name\xa1t\xabincarnation\x01\xa6con"
    b"fig\x86\xaapartitions\x01\xa8replica"
    b"s\x01\xa3ack\xa7written\xacmin_repli"
    b"cas\x01\xacon_meta_loss\xa4stop\xadl"
    b"ag_max_bytes\xce\x04\x00\x00\x00\xaapartit"
    b"ions\x91\x83\xa5epoch\x01\xa6master\xa1a"
    b"\xa9preferred\xa1a"
    b"\xa5nodes\x81\xa1a\x85\xa2id\xa1a\xa9addresse"
    b"s\x83\xa4data\xa3a:1\xabreplication\xa3"
    b"a:2\xa5admin\xa3a:3\xaefailure_do"
    b"main\xa6rack-a\xa5is_up\xc3\xa3run\x01\xa5"
    b"users\x81\xa1u\x84\xa4name\xa1u\xa5table\xa1t"
    b"\xadpassword_hash\xa1h\xa9may_wri"
    b"te\xc3"
)


async def register(client: MetaClient, node: NodeId, run: int = 1) -> int:
    change = registered(node)
    return await client.register(
        node, change.addresses, failure_domain=change.failure_domain, run=run
    )


async def _next(watch: AsyncIterator[Delta]) -> Delta:
    return await anext(watch)


async def begun() -> tuple[GroupInMemory, MetaClient]:
    group = GroupInMemory()
    client = MetaClient(group, GROUP)
    for node in (A, B):
        await register(client, node)
    await client.create_table("t", PAIR)
    return group, client


def test_operators_get_clear_answers() -> None:
    async def body() -> None:
        _, client = await begun()
        with pytest.raises(AlreadyExists, match="'t' exists"):
            await client.create_table("t", PAIR)
        await client.add_user(User(name="u", table="t", password_hash="h"))
        with pytest.raises(NotFound, match="no user 'x'"):
            await client.remove_user("x")
        await client.set_master("t", 0, B)
        with pytest.raises(Conflict, match="only a partition without one"):
            await client.force_master("t", 0, B)
        with pytest.raises(Conflict, match="is up"):
            await client.remove_node(A)
        await client.remove_slave("t", 0, B)
        await client.add_slave("t", 0, B)
        done = await client.apply(DropTable("x"), DropTable("t"))
        assert [each is None for each in done.results] == [False, True]
        assert (await client.topology()).users == {}

    in_virtual_time(body())


def test_operators_move_replicas() -> None:
    async def body() -> None:
        _, client = await begun()
        await register(client, C)
        plan = await client.migrate("t", 0, A, C)
        moved = (await client.topology()).tables["t"].partitions[0].migration
        assert moved == Migration(source=A, target=C, plan=plan)
        with pytest.raises(Conflict, match="plan anew"):
            await client.apply_planned(plan - 1, CancelMigration("t", 0), Migrate("t", 1, B, C))
        epoch = await client.apply_planned(plan, CancelMigration("t", 0), Migrate("t", 1, B, C))
        with pytest.raises(NotFound, match="does not move"):
            await client.cancel_migration("t", 0)
        await client.cancel_migration("t", 1)
        await client.set_draining(C, is_draining=True)
        with pytest.raises(Conflict, match="to be emptied"):
            await client.migrate("t", 0, A, C)
        assert (await client.topology()).epoch == epoch + 2

    in_virtual_time(body())


def test_a_heartbeat_gives_a_lease_and_what_is_new() -> None:
    async def body() -> None:
        group, client = await begun()
        offset = ReplicaOffset(1, 0, 5, 77)
        lease = await client.heartbeat(NodeHeartbeat(A, 1, -2, (offset,)), timeout_ms=60_000)
        assert (lease.lease_ms, lease.heartbeat_ms) == (SETTINGS.lease_ms, SETTINGS.heartbeat_ms)
        topology = applied(Topology(), lease.delta)
        assert topology == group.machine.topology
        lease = await client.heartbeat(NodeHeartbeat(A, 1, topology.epoch), timeout_ms=60_000)
        assert lease.delta.epoch == topology.epoch
        assert not lease.delta.tables
        with pytest.raises(NotFound, match="register"):
            await client.heartbeat(NodeHeartbeat(NodeId("x"), 1, 0), timeout_ms=60_000)
        with pytest.raises(Conflict, match="register"):
            await client.heartbeat(NodeHeartbeat(A, 2, 0), timeout_ms=60_000)
        assert group.heartbeats == 4, "they go before other clients' questions"

    in_virtual_time(body())


def test_a_node_that_is_down_gets_no_lease_until_that_is_undone() -> None:
    async def body() -> None:
        group, client = await begun()
        moment = None
        for _ in range(8):
            told = NodeHeartbeat(B, 1, 1, after=moment)
            moment = (await client.heartbeat(told, timeout_ms=60_000)).moment
            group.plan()
            group.now_ms += 500
        assert not group.machine.topology.nodes[A].is_up
        assert all(each.master != A for each in group.machine.topology.tables["t"].partitions)
        assert (await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)).lease_ms == 0
        group.plan()
        assert group.machine.topology.nodes[A].is_up
        assert (await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)).lease_ms

    in_virtual_time(body())


def test_only_the_leader_hears_and_each_term_begins_anew() -> None:
    async def body() -> None:
        group, client = await begun()
        await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)
        assert list(await client.reports()) == [A]
        group.term = None
        with pytest.raises(NotLeader):
            await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)
        assert group.machine.plan() == ()
        assert (await client.topology()).tables, "others answer what is replicated"
        group.term = 3
        assert await client.reports() == {}
        group.now_ms += SETTINGS.down_ms - 1
        assert group.machine.plan() == ()

    in_virtual_time(body())


def test_a_leader_that_was_stopped_for_a_while_blames_nobody_for_it() -> None:
    async def body() -> None:
        group, client = await begun()
        for node in (A, B):
            await client.heartbeat(NodeHeartbeat(node, 1, 1), timeout_ms=60_000)
        group.plan()
        group.now_ms += 60_000
        assert group.machine.plan() == ()

    in_virtual_time(body())


def test_a_node_that_is_being_declared_down_gets_no_lease_however_long_that_takes() -> None:
    async def body() -> None:
        group, client = await begun()
        for _ in range(6):
            group.plan()
            group.now_ms += 500
        pending = group.machine.plan()
        assert [type(each) for each in pending[:2]] == [NodeDown, NodeDown]
        group.now_ms += 60_000
        # The proposal has not come back; it may still be carried out.
        assert NodeDown(A, 1) in group.machine.plan()
        assert (await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)).lease_ms == 0
        await client.apply(*pending)
        assert (await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)).lease_ms == 0
        group.plan()
        assert (await client.heartbeat(NodeHeartbeat(A, 1, 1), timeout_ms=60_000)).lease_ms

    in_virtual_time(body())


def test_a_watch_tells_what_changes_and_outlives_a_leader() -> None:
    async def body() -> None:
        group, client = await begun()
        topology = await client.topology()
        watch = client.watch(topology.epoch)
        told = asyncio.create_task(_next(watch))
        await asyncio.sleep(0.02)
        assert not told.done()
        group.failures = [NotLeader("nobody leads"), DeadlineExceeded("nobody answers")]
        await client.create_table("u", PAIR)
        topology = applied(topology, await told)
        assert sorted(topology.tables) == ["t", "u"]
        await client.drop_table("t")
        topology = applied(topology, await anext(watch))
        assert topology == group.machine.topology
        group.failures = [PermissionDenied("no")]
        with pytest.raises(PermissionDenied):
            await anext(watch)

    in_virtual_time(body())


def test_it_can_be_waited_for_that_all_nodes_have_applied_an_epoch() -> None:
    async def body() -> None:
        _, client = await begun()
        await client.heartbeat(NodeHeartbeat(A, 1, 2), timeout_ms=60_000)
        with pytest.raises(DeadlineExceeded, match="nodes b have not applied epoch 2"):
            await client.wait_applied(2, timeout_ms=20)
        waiting = asyncio.create_task(client.wait_applied(2))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await client.heartbeat(NodeHeartbeat(B, 1, 2), timeout_ms=60_000)
        await waiting

    in_virtual_time(body())


def test_the_keeper_proposes_what_is_planned_where_its_store_leads() -> None:
    class Seen:
        """What a keeper needs of a host; `machine` is a method there."""

        def __init__(self, group: GroupInMemory) -> None:
            self.group = group

        def groups(self) -> list[int]:
            return self.group.groups()

        def is_leading(self, group: int) -> bool:
            return self.group.is_leading(group)

        def machine(self, group: int) -> Any:
            assert group == GROUP
            return self.group.machine

        async def propose(self, group: int, payload: bytes, *, timeout_ms: int) -> Any:
            return await self.group.propose(group, payload, timeout_ms=timeout_ms)

    async def body() -> None:
        group, client = await begun()
        keeper = MetaKeeper(Seen(group), GROUP, SETTINGS)
        await keeper.work()
        moment = None
        for _ in range(7):
            told = NodeHeartbeat(B, 1, 1, after=moment)
            moment = (await client.heartbeat(told, timeout_ms=60_000)).moment
            group.now_ms += 500
            await keeper.work()
        epoch = group.machine.topology.epoch
        assert epoch == 3, "a node's end and all that follows from it are one change"
        assert not group.machine.topology.nodes[A].is_up
        group.term = None
        await keeper.work()
        running = asyncio.create_task(keeper.run())
        await asyncio.sleep(0.15)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    in_virtual_time(body())


class Files:
    def add(self, name: str, path: str) -> None:
        raise AssertionError(f"{name}: {path}")


async def recover(machine: MetaMachine, chunks: Sequence[bytes]) -> None:
    async def stream() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    async with aclosing(stream()) as source:
        await machine.recover_from_snapshot(source, {}, lambda: False)


def test_a_snapshot_is_all_that_is_replicated() -> None:
    async def body() -> None:
        group, client = await begun()
        await client.add_user(User(name="u", table="t", password_hash="h"))
        chunks = list(group.machine.save_snapshot(Files(), lambda: False))
        other = group.new_machine()
        await recover(other, chunks)
        assert other.topology == group.machine.topology
        assert list(other.save_snapshot(Files(), lambda: False)) == chunks
        before = group.machine.topology.epoch
        group.machine = other
        assert (await client.changes(before - 1, wait_ms=0)).is_whole
        await client.drop_table("t")
        assert not (await client.changes(before, wait_ms=0)).is_whole
        head, version, rest = chunks[0][:4], chunks[0][4:5], chunks[0][5:]
        with pytest.raises(UnsupportedVersion, match="format 2"):
            await recover(other, [head, b"\x02", rest])
        for damaged in (b"", b"RWZM", b"XXXX" + version + rest, head + version + rest[:-3]):
            with pytest.raises(StoreDamaged):
                await recover(other, [damaged])

    in_virtual_time(body())


def test_a_snapshot_has_these_bytes() -> None:
    async def body() -> None:
        group = GroupInMemory()
        client = MetaClient(group, GROUP)
        await register(client, A)
        await client.create_table("t", TableConfig(partitions=1, replicas=1))
        await client.add_user(User(name="u", table="t", password_hash="h"))
        data = b"".join(group.machine.save_snapshot(Files(), lambda: False))
        assert data == GOLDEN

    in_virtual_time(body())


def test_bytes_that_are_no_command_or_question_are_refused() -> None:
    machine = GroupInMemory().machine
    for payload in (b"", b"\xc1", b"\x90", b"\x91\x91\xa1x", b"\x91\x92\xaadrop_table\x01"):
        (answer,) = machine.update([Command(1, payload)])
        (refused,) = decode_applied(answer).results
        assert refused is not None
        assert isinstance(refused.error(), InvalidInput)
        assert isinstance(machine.lookup(payload), bytes)
    too_many = MetaClient(GroupInMemory(), GROUP)

    async def body() -> None:
        done = await too_many.apply(*[DropTable("t")] * 20_001)
        assert done.results[0] is not None
        with pytest.raises(InvalidInput, match="0 partitions"):
            CreateTable("t", TableConfig(partitions=0))

    in_virtual_time(body())
