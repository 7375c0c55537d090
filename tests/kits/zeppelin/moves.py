"""Migrations of real nodes, seen from the meta server: at which step each is, and since when.

    with watching(cluster) as watch:
        moved = watch.planned("orders", 0)
        watch.order(moved)
        watch.check_moved(moved)

All of it blocks, and goes on while the meta server's leader dies.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.loop_thread import LoopThread
from raftwood.server.cluster_client import awaited_zeppelin
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.model import EPOCH_NONE, NodeId, Partition, PartitionState, Topology
from tests.kits.processes import RealProcess
from tests.kits.zeppelin.processes import WAIT_S_MAX, KvProcesses

_ATTEMPTS: Final = 10


class Step(StrEnum):
    """Of a migration; `none` where nothing moves."""

    NONE = "none"
    REGISTERED = "registered"
    CATCHING_UP = "catching up"
    FROZEN = "frozen"
    HANDED_OVER = "handed over"


def step_of(partition: Partition) -> Step:
    moving = partition.migration
    if moving is None:
        return Step.NONE
    if moving.target not in partition.replicas:
        return Step.REGISTERED
    if moving.target == partition.master:
        return Step.HANDED_OVER
    is_frozen = partition.state is PartitionState.STUCK and partition.target == moving.target
    return Step.FROZEN if is_frozen else Step.CATCHING_UP


class Seen(msgspec.Struct, frozen=True):
    """A partition's step from this moment on."""

    at_s: float
    """By the clock that all processes of the machine share."""
    step: Step
    state: PartitionState


class Move(NamedTuple):
    """Of a replica."""

    table: str
    partition: int
    source: NodeId
    target: NodeId


class _Killing(msgspec.Struct):
    step: Step
    moved: Move
    victim: RealProcess
    is_needed: bool = True


class Watch:
    """Use `watching`."""

    def __init__(self, cluster: KvProcesses) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._topology = Topology()
        self._seen: dict[tuple[str, int], list[Seen]] = {}
        self._killing: _Killing | None = None

    def planned(
        self, table: str, number: int, *, is_master: bool = True, target: NodeId | None = None
    ) -> Move:
        """Of the master or of a slave, to a node that is named or to one that has no replica."""
        before = self.partition(table, number)
        others = [node for node in self.topology().nodes if node not in before.replicas]
        return Move(table, number, before.replicas[0 if is_master else 1], target or others[0])

    def order(self, moved: Move) -> None:
        plan = self._cluster.ask(lambda meta: meta.migrate(*moved))
        self.wait(lambda topology: topology.epoch >= plan)

    def kill_in(
        self, step: Step, table: str, number: int, victim: Callable[[Move], RealProcess]
    ) -> Move:
        """Move a master, and kill a process with SIGKILL as soon as that is at a step.

        A step may be over before anybody hears of it: then it moves on, until it is not.
        """
        for _ in range(_ATTEMPTS):
            moved = self.planned(table, number)
            killing = _Killing(step, moved, victim(moved))
            with self._changed:
                self._killing = killing
            self.order(moved)
            self._wait_killed(killing)
            if not killing.is_needed:
                return moved
        raise AssertionError(f"it was never seen to be {step}")

    def _wait_killed(self, killing: _Killing) -> None:
        """Or until there is nothing more to wait for."""
        table = killing.moved.table
        self.wait(lambda topology: not killing.is_needed or _is_at_rest(topology, table))
        with self._changed:
            self._killing = None

    def topology(self) -> Topology:
        with self._changed:
            return self._topology

    def partition(self, table: str, number: int) -> Partition:
        return self.topology().tables[table].partitions[number]

    def freezes(self, table: str) -> dict[int, list[tuple[float, float]]]:
        """By partition: when its writes waited, from and to."""
        found: dict[int, list[tuple[float, float]]] = {}
        with self._changed:
            for (name, number), seen in self._seen.items():
                if name == table:
                    found[number] = [
                        (one.at_s, after.at_s)
                        for one, after in itertools.pairwise(seen)
                        if one.state is PartitionState.STUCK
                    ]
        return found

    def wait(self, is_so: Callable[[Topology], bool], *, seconds: float = WAIT_S_MAX) -> Topology:
        with self._changed:
            is_in_time = self._changed.wait_for(lambda: is_so(self._topology), seconds)
            assert is_in_time, f"it does not come to that: {self._topology}"
            return self._topology

    def wait_at_rest(self, table: str) -> None:
        """Until nothing of a table moves."""
        self.wait(lambda topology: _is_at_rest(topology, table))

    def check_moved(self, *moves: Move) -> None:
        """Once nothing of their table moves any more."""
        for moved in moves:
            self.wait_at_rest(moved.table)
            after = self.partition(moved.table, moved.partition)
            assert moved.target in after.replicas
            assert moved.source not in after.replicas
            assert len(after.replicas) == self.topology().tables[moved.table].config.replicas

    # On the thread that watches.

    async def run(self, environment: Environment) -> None:
        async with AsyncExitStack() as stack:
            stores = ",".join(self._cluster.stores_running().values())
            meta = await awaited_zeppelin(stack, environment, self._cluster.settings, stores)
            self._note(await meta.topology())
            while True:
                try:
                    # Without the pause of a watch that others are to have time beside.
                    delta = await meta.changes(self._topology.epoch)
                except RaftwoodError as error:
                    if not error.retriable:
                        raise
                else:
                    self._note(applied(self._topology, delta))

    def _note(self, topology: Topology) -> None:
        now = time.monotonic()
        with self._changed:
            self._topology = topology
            for table in topology.tables.values():
                for number, partition in enumerate(table.partitions):
                    self._note_partition(table.name, number, partition, now)
            self._changed.notify_all()

    def _note_partition(self, table: str, number: int, partition: Partition, now: float) -> None:
        step = step_of(partition)
        killing = self._killing
        if killing is not None and (killing.step, *killing.moved[:2]) == (step, table, number):
            killing.victim.kill_now()
            killing.is_needed, self._killing = False, None
        seen = self._seen.setdefault((table, number), [])
        if not seen or (seen[-1].step, seen[-1].state) != (step, partition.state):
            seen.append(Seen(now, step, partition.state))


def _is_at_rest(topology: Topology, table: str) -> bool:
    return all(
        each.migration is None and each.target is None and each.master is not None
        for each in topology.tables[table].partitions
    )


@contextmanager
def watching(cluster: KvProcesses) -> Iterator[Watch]:
    """By a thread of its own, through deaths of the meta server's leader."""
    watch, thread = Watch(cluster), LoopThread("watch")
    try:
        work = thread.begin(watch.run(thread.environment))
        watch.wait(lambda topology: topology.epoch != EPOCH_NONE)
        yield watch
        assert not work.done(), work.exception()
    finally:
        thread.stop()
