"""One store of three gets bad files: it is repaired or halts, and the others never notice."""

import random

import pytest

from raftwood.raft.membership import MemberAction, MemberStep
from tests.kits.raft.damage import STORE, HaltingCluster
from tests.kits.raft.damaged_stores import (
    DAMAGES,
    MODES,
    SMALL_SNAPSHOTS,
    flip_any,
    run_damage,
)
from tests.kits.raft.host_cluster import GROUP, Cluster, address, run_cluster, write


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_bad_files_of_one_store_are_repaired_or_halt_it(kind: str, mode: str) -> None:
    """By turns of a follower and of the leader."""
    run_damage(kind, mode, ([*DAMAGES].index(kind) + MODES.index(mode)) % 2)


def test_a_store_that_halts_for_damage_is_replaced_by_one_with_a_new_number() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, HaltingCluster)
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 200)
            await cluster.agree(1, 2, 3)
            store = (await cluster.wait_for_leader()) % 3 + 1
            await cluster.stop(store)
            machine = cluster.machines[store]
            flip_any(machine, f"{STORE}/IDENTITY", random.Random(1))
            cluster.start(store)
            await cluster.until(lambda: store in cluster.halts)
            assert f"raftwood raft replace {store} NEW" in cluster.halts[store]
            assert not machine.running
            cluster.start(4, joins=True)
            admin = client.admin
            await admin.change_members(GROUP, [MemberStep(MemberAction.REMOVE, store)])
            for action in (MemberAction.ADD_LEARNER, MemberAction.ADD_VOTER):
                await admin.change_members(GROUP, [MemberStep(action, 4, address(4))])
            await write(client, 50, start=200)
        others = [each for each in (1, 2, 3) if each != store]
        assert len(await cluster.agree(4, *others)) == 250

    run_cluster(scenario, settings=SMALL_SNAPSHOTS, cluster_type=HaltingCluster)
