"""What a host does when its log takes nothing more: it waits, and goes on by itself."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, address, run_cluster, write

from raftwood.base.errors import DeadlineExceeded, DiskFull, Overloaded, RaftwoodError
from raftwood.disk.segment_log import DropGroup, Record, Run, SetState
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.node_host import NodeHost
from raftwood.raft.registry import HOST_GROUP, StoreRegistry
from raftwood.raft.replica import Replica


class Refusal:
    """Makes a host's log refuse some records until it is lifted."""

    def __init__(
        self, host: NodeHost, error: RaftwoodError, is_meant: Callable[[Record], bool]
    ) -> None:
        self.count = 0
        self.is_lifted = False
        self.allowed = 0
        """So many writes more are taken."""
        log = host._store.log
        write_as_before = log.write

        def write(records: Sequence[Record], done: Callable[[], None] | None = None) -> None:
            if not self.is_lifted and any(is_meant(record) for record in records):
                if not self.allowed:
                    self.count += 1
                    raise error
                self.allowed -= 1
            write_as_before(records, done)

        log.write = write  # type: ignore[method-assign, assignment]


def test_a_member_is_added_while_the_log_has_no_room_for_its_address() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            follower = next(store for store in (1, 2, 3) if store != leader)
            refusal = Refusal(
                cluster.hosts[follower],
                Overloaded("many bytes wait for the disk"),
                lambda record: isinstance(record, SetState) and record.group == HOST_GROUP,
            )
            cluster.start(4, joins=True)
            step = MemberStep(MemberAction.ADD_VOTER, 4, address(4))
            await client.admin.change_members(GROUP, [step])
            await write(client, 10, start=10)
            await cluster.agree(1, 2, 3, 4)
            assert refusal.count
            assert cluster.hosts[follower].addresses()[4] == address(4)
            cluster.machines[follower].kill()
            cluster.start(follower)
            await cluster.until(lambda: cluster.has_group(follower))
            # Its log tells it again.
            await cluster.until(lambda: 4 in cluster.hosts[follower].addresses())

    run_cluster(scenario)


def test_a_replica_that_was_removed_is_dropped_once_there_is_room_to_say_so() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            removed = next(store for store in (1, 2, 3) if store != leader)
            host = cluster.hosts[removed]
            refusal = Refusal(
                host, DiskFull("no room"), lambda record: isinstance(record, DropGroup)
            )
            await client.admin.change_members(GROUP, [MemberStep(MemberAction.REMOVE, removed)])
            await cluster.until(lambda: refusal.count > 0)
            await asyncio.sleep(5)
            assert cluster.machines[removed].running
            refusal.is_lifted = True
            await cluster.until(lambda: not cluster.has_group(removed))

            def is_dropped() -> bool:
                state = host._opener.state_of(GROUP)
                return state is not None and state.is_removed

            await cluster.until(is_dropped)

    run_cluster(scenario)


def test_a_group_that_is_stopped_while_it_is_being_removed_harms_nobody() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
        host = cluster.hosts[1]
        host._groups.leave(host._replicas[GROUP])
        await host.stop_group(GROUP)
        await asyncio.sleep(1)
        assert cluster.machines[1].running

    run_cluster(scenario)


def test_a_store_is_not_heard_before_its_folder_is_noted() -> None:
    class FullLog:
        is_full = True

        def groups(self) -> list[int]:
            return []

        def write(self, *_: object) -> None:
            if self.is_full:
                raise DiskFull("no room")

    log = FullLog()
    book = StoreRegistry(log)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(DiskFull):
            book.admit(2, "folder")
    log.is_full = False
    book.admit(2, "folder")


def test_what_waits_for_room_does_not_grow_with_time() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 10)
            leader = await cluster.wait_for_leader()
            full = next(store for store in (1, 2, 3) if store != leader)
            refusal = Refusal(
                cluster.hosts[full], DiskFull("no room"), lambda record: isinstance(record, Run)
            )
            await write(client, 2_000, start=10)
            replica = cluster.hosts[full]._replicas[GROUP]
            await asyncio.sleep(5)
            before = _waiting(replica)
            assert before
            await asyncio.sleep(60)
            assert _waiting(replica) == before
            refusal.is_lifted = True
            await write(client, 10, start=2_010)
            assert len(await cluster.agree(1, 2, 3)) == 2_020

    run_cluster(scenario)


def _waiting(replica: Replica) -> int:
    return sum(1 + len(message.responses) for message in replica.backlog)


def test_a_change_that_was_replaced_while_it_waited_for_room_is_not_stored_as_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3, 4, 5)
        async with cluster.client() as client:
            await write(client, 10)
        await cluster.agree(1, 2, 3, 4, 5)
        old = await cluster.wait_for_leader()
        full, *others = (store for store in (1, 2, 3, 4, 5) if store != old)
        refusal = Refusal(
            cluster.hosts[full], DiskFull("no room"), lambda record: isinstance(record, Run)
        )
        network = cluster.simulation.network
        network.partition([f"s{old}", f"s{full}"], [f"s{store}" for store in others])
        change = cluster.hosts[old].change_members(
            GROUP, [MemberStep(MemberAction.ADD_LEARNER, 6, address(6))], timeout_ms=1_000
        )
        with pytest.raises(DeadlineExceeded):
            await change
        replica = cluster.hosts[full]._replicas[GROUP]
        assert replica.backlog
        await cluster.until(lambda: cluster.leader() in others)
        network.heal()
        async with cluster.client(*others) as client:
            await write(client, 10, start=10)
        commit = cluster.hosts[cluster.leader()].status(GROUP).commit
        await cluster.until(lambda: replica.node.raft.log.committed >= commit)
        refusal.allowed = 1
        await cluster.until(lambda: refusal.allowed == 0)
        await asyncio.sleep(1)
        cluster.machines[full].power_off()
        cluster.start(full)
        await cluster.agree(1, 2, 3, 4, 5)
        assert cluster.hosts[full].status(GROUP).learners == ()

    run_cluster(scenario, members=(1, 2, 3, 4, 5))
