"""HAKeeper as a raft group's state machine: bytes, questions and snapshots."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from raftwood.base.errors import InvalidInput, NotFound, StoreDamaged
from raftwood.logservice.hakeeper import commands
from raftwood.logservice.hakeeper.commands import DrainStore, Scheduled, decode_result
from raftwood.logservice.hakeeper.messages import AlarmKind
from raftwood.logservice.hakeeper.state import ClusterPhase, encode_state
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.settings import HaKeeperSettings
from raftwood.raft.core import Entry
from tests.kits.logservice.keeper import SETTINGS, Keeper, report
from tests.kits.running import run


class NoFiles:
    def add(self, name: str, path: str) -> None:
        raise AssertionError((name, path))


def machine_of(keeper: Keeper) -> HaKeeperStateMachine:
    machine = HaKeeperStateMachine(SETTINGS)
    machine.state = keeper.state
    return machine


def lookup(machine: HaKeeperStateMachine, query: commands.KeeperQuery) -> bytes:
    return machine.lookup(commands.encode_query(query))


async def recovered(data: Sequence[bytes], *, stops: bool) -> HaKeeperStateMachine:
    async def chunks() -> AsyncGenerator[bytes, None]:
        for chunk in data:
            yield chunk

    machine = HaKeeperStateMachine(SETTINGS)
    async with aclosing(chunks()) as source:
        await machine.recover_from_snapshot(source, {}, lambda: stops)
    return machine


def restore(data: Sequence[bytes], *, stops: bool = False) -> HaKeeperStateMachine:
    return run(recovered(data, stops=stops))


def test_a_leader_ticks_and_schedules_by_commands() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.say((1, 2, 3), report(0, (1, 2, 3), leader=1))
    machine = machine_of(keeper)
    tick = keeper.state.tick
    machine.update([Entry(1, 1, payload=machine.tick_command())])
    assert machine.state.tick == tick + 1
    command = machine.schedule_command(term=4)
    assert command is not None
    (result,) = machine.update([Entry(1, 2, payload=command)])
    assert decode_result(result) == Scheduled(3)
    assert machine.schedule_command(term=4) is None
    machine.close()


def test_each_command_has_its_result() -> None:
    machine = HaKeeperStateMachine()
    tick = machine.tick_command()
    assert len(machine.update([Entry(1, i, payload=p) for i, p in enumerate((tick, b"x"))])) == 2


def test_the_whole_cluster_is_described() -> None:
    keeper = Keeper()
    keeper.running(4, tn=1)
    keeper.service("tn-1")
    keeper.schedule()
    keeper.tell(DrainStore(4, is_draining=True))
    keeper.store(2, alarms=("its disk is nearly full",))
    machine = machine_of(keeper)
    view = commands.decode_answer(lookup(machine, commands.DescribeCluster()), commands.ClusterView)
    assert view.phase is ClusterPhase.RUNNING
    assert [store.store for store in view.stores] == [1, 2, 3, 4]
    assert [store.is_draining for store in view.stores] == [False, False, False, True]
    assert view.stores[0].leaders == 2
    assert [(shard.shard, shard.leader) for shard in view.shards] == [(0, 1), (1, 1)]
    assert [service.service for service in view.services] == ["tn-1"]
    assert view.tn_shards[0].owner == "tn-1"
    assert view.orders
    assert AlarmKind.STORE in {alarm.kind for alarm in view.alarms}


def test_a_shard_is_found_by_number_and_by_name() -> None:
    keeper = Keeper()
    keeper.running()
    machine = machine_of(keeper)
    by_number = commands.decode_answer(
        lookup(machine, commands.FindShard(1)), commands.KeeperShardView
    )
    by_name = commands.decode_answer(
        lookup(machine, commands.FindShard(name="log-1")), commands.KeeperShardView
    )
    assert by_number == by_name
    assert by_number.addresses == {1: "s1:1", 2: "s2:1", 3: "s3:1"}
    assert (by_number.leader, by_number.voters) == (1, (1, 2, 3))
    for query in (commands.FindShard(9), commands.FindShard(name="nothing")):
        with pytest.raises(NotFound):
            commands.decode_answer(lookup(machine, query), commands.KeeperShardView)


def test_addresses_are_those_reported_or_named() -> None:
    keeper = Keeper()
    keeper.begin()
    keeper.store(7)
    found = commands.decode_answer(
        lookup(machine_of(keeper), commands.ListAddresses()), commands.Addresses
    )
    assert found.stores == {1: "s1:1", 2: "s2:1", 3: "s3:1", 7: "s7:1"}


def test_what_is_no_question_is_answered_with_an_error() -> None:
    machine = HaKeeperStateMachine()
    with pytest.raises(InvalidInput, match="not a question"):
        commands.decode_answer(machine.lookup(b"\xc1"), commands.ClusterView)
    with pytest.raises(Exception, match="another question"):
        commands.decode_answer(lookup(machine, commands.ListAddresses()), commands.ClusterView)


def test_a_snapshot_brings_the_state_back() -> None:
    keeper = Keeper()
    keeper.running(4, tn=1)
    machine = machine_of(keeper)
    chunks = list(machine.save_snapshot(NoFiles(), lambda: False))
    assert encode_state(restore(chunks).state) == encode_state(keeper.state)
    assert list(machine.save_snapshot(NoFiles(), lambda: True)) == []
    assert restore(chunks, stops=True).state.tick == 1
    with pytest.raises(StoreDamaged):
        restore([b"nothing"])


def test_a_zombie_is_not_killed_sooner_than_a_leader_is_missed() -> None:
    with pytest.raises(ValueError, match="zombie_ticks"):
        HaKeeperSettings(zombie_ticks=5, store_down_ticks=9)
