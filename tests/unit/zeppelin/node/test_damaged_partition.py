"""Bad data of a partition: never led with, and taken anew from the master."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.errors import StoreDamaged
from raftwood.testing import Machine
from raftwood.zeppelin.node.engine import LOST
from tests.kits.zeppelin.engines import PAIRS
from tests.kits.zeppelin.node_cluster import Cluster, scene
from tests.kits.zeppelin.simulation.node import FOLDER, NodeMachine
from tests.kits.zeppelin.stores import PARTITION, Place, contents, put, run_on_rocksdb

KEYS = 50


def engine_files(machine: Machine) -> list[str]:
    files = machine.disk.file_system.files
    return sorted(path for path in files if path.startswith(FOLDER) and path.endswith(f"/{PAIRS}"))


async def stopped(cluster: Cluster, node: NodeMachine) -> None:
    node.stop()
    await cluster.simulation.wait_until(lambda: not node.machine.running)


def is_whole(cluster: Cluster, node: NodeMachine) -> bool:
    replica = node.replica(cluster.partition)
    if replica is None:
        return False
    report = replica.report()
    return report.is_whole and (report.is_streaming or replica.may_write)


async def filled(cluster: Cluster) -> None:
    for number in range(KEYS):
        assert await cluster.ask(cluster.master.name, "SET", f"key{number}", f"v{number}") == "OK"
    await cluster.simulation.wait_until(
        lambda: all(is_whole(cluster, node) for node in cluster.nodes.values() if node.held())
    )


async def has_all(cluster: Cluster) -> None:
    for number in range(KEYS):
        answer: object = "MOVED"
        while isinstance(answer, str):  # it goes to another one meanwhile
            answer = await cluster.ask(cluster.master.name, "GET", f"key{number}")
        assert answer == f"v{number}".encode(), number


@pytest.mark.parametrize("is_master", [False, True])
@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_engine_is_taken_anew_from_the_master(is_master: bool, damage: str) -> None:
    async def body(cluster: Cluster) -> None:
        await filled(cluster)
        master = cluster.master
        (slave,) = [node for node in cluster.nodes.values() if node is not master]
        victim = master if is_master else slave
        replica = victim.replica(cluster.partition)
        assert replica is not None
        await replica.store.engine.flush()  # type: ignore[attr-defined]
        # Back before anybody misses it: as a master it has to be told that it is none any more.
        victim.break_down(loses_power=False)
        (path,) = engine_files(victim.machine)
        if damage == "flipped":
            victim.machine.disk.flip_bit(path, offset=100, bit=1)
        else:
            victim.machine.disk.cut(path, length=100)
        victim.start()
        await cluster.simulation.wait_until(
            lambda: all(is_whole(cluster, node) for node in cluster.nodes.values()), timeout_s=60
        )
        await has_all(cluster)
        assert victim.problem() == ""
        # The copy is as good as any: it leads when the other one goes.
        other = slave if victim is master else master
        await stopped(cluster, other)
        await cluster.simulation.wait_until(lambda: cluster.master_serves, timeout_s=60)
        assert cluster.master is victim
        await has_all(cluster)
        other.start()

    scene(body)


def test_the_only_copy_is_left_as_it_is() -> None:
    async def body(cluster: Cluster) -> None:
        await filled(cluster)
        master = cluster.master
        await stopped(cluster, master)
        (path,) = engine_files(master.machine)
        master.machine.disk.flip_bit(path, offset=100, bit=1)
        before = master.machine.disk.file_system.contents(path)
        master.start()
        await asyncio.sleep(10)
        assert "damaged" in master.problem()
        assert not cluster.master_serves
        assert engine_files(master.machine) == [path]
        assert master.machine.disk.file_system.contents(path) == before
        master.machine.disk.flip_bit(path, offset=100, bit=1)
        await stopped(cluster, master)
        master.start()
        await cluster.simulation.wait_until(lambda: cluster.master_serves, timeout_s=60)
        await has_all(cluster)

    scene(body, replicas=1)


def cut_table(folder: Path) -> None:
    (table,) = folder.glob("*.sst")
    table.write_bytes(table.read_bytes()[:-20])


def test_a_damaged_rocksdb_begins_anew_and_lacks_everything(tmp_path: Path) -> None:
    """Also after a restart: an empty engine never counts as one that has all."""

    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        for number in range(100):
            put(store, b"key%d" % number, b"v" * 100)
        await store.settle()
        await node.close()
        (engine,) = await place.engines.names()
        cut_table(Path(place.engines.folder(engine)))
        node = await place.open()
        with pytest.raises(StoreDamaged):
            await node.partition(PARTITION)
        store = await node.begin_anew(PARTITION)
        assert (store.repairing, store.last_sequence, contents(store)) == (LOST, 0, {})
        await node.close()
        node, store = await place.open_one()
        assert (store.repairing, store.last_sequence, contents(store)) == (LOST, 0, {})
        assert engine not in await place.engines.names()
        await node.close()

    run_on_rocksdb(scenario, tmp_path)


def test_a_node_whose_log_is_damaged_names_the_commands(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        node, _ = await place.open_one()
        await node.close()
        (tmp_path / "log/0000000001.segment").unlink()
        with pytest.raises(StoreDamaged, match="raftwood kv cluster replace-node OLD NEW"):
            await place.open()

    run_on_rocksdb(scenario, tmp_path)
