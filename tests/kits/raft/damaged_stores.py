"""One store of three gets bad files: it is repaired or halts, and the others never notice."""

import asyncio
import random
from collections.abc import Callable

import msgspec

from raftwood.testing import Machine
from tests.kits.raft.damage import STORE, HaltingCluster, is_whole, log_files, snapshots_of
from tests.kits.raft.host_cluster import SETTINGS, Cluster, run_cluster, write

SMALL_SNAPSHOTS = msgspec.structs.replace(SETTINGS, snapshot_entries=60, snapshot_entries_kept=20)
_IDENTITY = f"{STORE}/IDENTITY"
MODES = ("stopped", "powered off", "running")


def _written(machine: Machine, path: str) -> int:
    """Up to where a file holds anything: a segment ends in zeros."""
    return len(machine.disk.file_system.contents(path).rstrip(b"\0"))


def flip_any(machine: Machine, path: str, chosen: random.Random) -> None:
    offset = chosen.randrange(_written(machine, path))
    machine.disk.flip_bit(path, offset=offset, bit=chosen.randrange(8))


def _cut(machine: Machine, path: str, chosen: random.Random) -> None:
    machine.disk.cut(path, length=chosen.randrange(_written(machine, path)))


def _lose(machine: Machine, path: str, _: random.Random) -> None:
    machine.disk.lose(path)


def zero_tail(machine: Machine, path: str, chosen: random.Random) -> None:
    """Zero a file from somewhere on, at its length."""
    written = _written(machine, path)
    start = chosen.randrange(written)
    inode = machine.disk.file_system.files[path]
    for layer in (inode.cached, inode.durable):
        layer.write(start, bytes(written - start))


def lose_log(machine: Machine, *_: object) -> None:
    """Lose all files of the log."""
    for path in log_files(machine, ""):
        machine.disk.lose(path)


def segment_of(machine: Machine, chosen: random.Random) -> str:
    return chosen.choice(
        [path for path in log_files(machine, ".segment") if _written(machine, path)]
    )


def _snapshot(machine: Machine, chosen: random.Random) -> str:
    return chosen.choice(snapshots_of(machine))


def _identity(*_: object) -> str:
    return _IDENTITY


_Pick = Callable[[Machine, random.Random], str]
_Damage = Callable[[Machine, str, random.Random], None]
DAMAGES: dict[str, tuple[_Pick, _Damage]] = {
    "flipped segment": (segment_of, flip_any),
    "cut segment": (segment_of, _cut),
    "lost segment": (segment_of, _lose),
    "zeroed segment": (segment_of, zero_tail),
    "lost log": (segment_of, lose_log),
    "flipped snapshot": (_snapshot, flip_any),
    "cut snapshot": (_snapshot, _cut),
    "lost snapshot": (_snapshot, _lose),
    "flipped identity": (_identity, flip_any),
    "cut identity": (_identity, _cut),
}


async def _bring_damage(cluster: Cluster, store: int, kind: str, mode: str, seed: int) -> None:
    machine = cluster.machines[store]
    chosen = random.Random(f"{kind} {mode} {seed}")
    await asyncio.sleep(chosen.random() * 0.1)
    if mode == "stopped":
        await cluster.stop(store)
    elif mode == "powered off":
        machine.power_off()
    pick, damage = DAMAGES[kind]
    damage(machine, pick(machine, chosen), chosen)
    if mode != "running":
        cluster.start(store)


def run_damage(kind: str, mode: str, seed: int) -> None:
    """Bad files of one store are repaired or halt it; by the seed, of a follower or the leader."""

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 200)
            leader = await cluster.wait_for_leader()
            store = leader if seed % 2 else leader % 3 + 1
            others = [each for each in (1, 2, 3) if each != store]
            await _bring_damage(cluster, store, kind, mode, seed)
            await write(client, 100, start=200)
            if mode == "running":
                # A follower that needs what is damaged, and a start that reads all of it.
                cluster.machines[others[0]].power_off()
                await asyncio.sleep(3)
                cluster.start(others[0])
                await write(client, 50, start=300)
                cluster.machines[store].power_off()
                cluster.start(store)
            else:
                await write(client, 50, start=300)
            await write(client, 50, start=350)
        await _check(cluster, store, others, 400)

    run_cluster(scenario, seed=seed + 1, settings=SMALL_SNAPSHOTS, cluster_type=HaltingCluster)


async def _check(cluster: Cluster, store: int, others: list[int], count: int) -> None:
    assert isinstance(cluster, HaltingCluster)
    await cluster.until(
        lambda: is_whole(cluster, store) or not cluster.machines[store].running, timeout_s=200.0
    )
    serving = others if store in cluster.halts else [*others, store]
    if store in cluster.halts:
        assert "raftwood raft replace" in cluster.halts[store] or "version" in cluster.halts[store]
    lines = await cluster.agree(*serving)
    assert sorted(lines) == sorted(b"line %d" % number for number in range(count))
