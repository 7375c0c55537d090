"""Replicas move between real nodes, and nodes that take part die: no acked write is lost, none is
done twice, and all replicas are equal in the end.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from raftwood.zeppelin.model import TableConfig
from tests.kits.processes import RealProcess
from tests.kits.running import run
from tests.kits.zeppelin.moves import Move, Step, Watch, watching
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes
from tests.kits.zeppelin.writers import KvUser, Writer, read_replicas

PARTITIONS = 4
NODES = 4
WRITERS = 4
SETTINGS = {"zeppelin_meta.handover_pause_ms": 1_000}
"""A partition whose target died while it was frozen is not left alone for long."""
VICTIMS = ("source", "target")
STEPS = (Step.CATCHING_UP, Step.FROZEN)
SAFE = TableConfig(partitions=PARTITIONS, replicas=3, min_replicas=2)
QUICK = TableConfig(partitions=PARTITIONS, replicas=2, min_replicas=1)


def _written(cluster: KvProcesses, login: Login, scenario: Callable[[], None]) -> None:
    """Let a scenario happen while writers count; then look for all that they were told."""

    async def main() -> None:
        writers = [Writer(cluster, login, f"w{number}") for number in range(WRITERS)]
        clients: list[Writer | KvUser] = [*writers, user := KvUser(cluster, login)]
        async with asyncio.TaskGroup() as group:
            for each in clients:
                group.create_task(each.run())
            await asyncio.to_thread(scenario)
            for each in clients:
                each.is_writing = False
        await asyncio.to_thread(cluster.wait_equal, login.table)
        expected = {writer.counter: b"%d" % writer.count for writer in writers}
        expected |= user.keys()
        for writer in writers:
            expected |= {key: value.encode() for key, value in writer.keys().items()}
        topology = await asyncio.to_thread(cluster.topology)
        copies = topology.tables[login.table].config.replicas
        found = await read_replicas(cluster, login, [*expected])
        assert found == {key: [value] * copies for key, value in expected.items()}
        longest_s = max(writer.longest_s for writer in writers)
        print(f"{len(expected)} keys, silent for {longest_s:.2f} s at most")

    run(main())


def test_what_was_acked_stays_while_replicas_move_and_nodes_die(tmp_path: Path) -> None:
    with kv_processes(tmp_path, nodes=NODES, settings=SETTINGS) as cluster:
        without_faults_one_replica_is_enough(cluster)
        migrations_outlive_their_sources_and_their_targets(cluster)


def without_faults_one_replica_is_enough(cluster: KvProcesses) -> None:
    login = cluster.create_table("quick", QUICK)

    def scenario() -> None:
        with watching(cluster) as watch:
            moves = [watch.planned("quick", n, is_master=n % 2 == 0) for n in range(PARTITIONS)]
            for moved in moves:
                watch.order(moved)
            watch.check_moved(*moves)

    _written(cluster, login, scenario)


def migrations_outlive_their_sources_and_their_targets(cluster: KvProcesses) -> None:
    login = cluster.create_table("safe", SAFE)

    def scenario() -> None:
        with watching(cluster) as watch:
            for number, (victim, step) in enumerate(itertools.product(VICTIMS, STEPS)):
                dies(watch, number, victim, step)

    def dies(watch: Watch, number: int, victim: str, step: Step) -> None:
        def victim_of(moved: Move) -> RealProcess:
            return cluster.nodes[cluster.number_of(getattr(moved, victim))]

        began_s = time.monotonic()
        moved = watch.kill_in(step, "safe", number, victim_of)
        killed_s = time.monotonic() - began_s
        if victim == "source":
            watch.check_moved(moved)
        victim_of(moved).start()
        watch.check_moved(moved)
        took_s = time.monotonic() - began_s
        print(f"the {victim} dies while {step}: after {killed_s:.1f} s, over after {took_s:.1f} s")

    _written(cluster, login, scenario)
