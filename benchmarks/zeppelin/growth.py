"""Nodes join under load and get their share, and leave again: what clients notice of it.

    python -m benchmarks.run --parts zeppelin-growth

Three nodes become six and three again, all on one machine with three stores and the load: what is
seen is how little a move disturbs, and not what more nodes serve.
"""

import array
import contextlib
import itertools
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

import msgspec
from tests.kits.zeppelin.processes import KvProcesses, kv_processes

from benchmarks.harness.cluster import ClusterFailed, check_disk, check_space
from benchmarks.peers.programs import CACHE
from benchmarks.zeppelin.growth_load import Given, Said
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager
from raftwood.zeppelin.meta.plans import ClusterPlan, drain, expand
from raftwood.zeppelin.model import NodeId, TableConfig, Topology

TABLE: Final = "growth"
SLOT_S: Final = 0.5
MOVES_S_MAX: Final = 300.0
LOAD_S_MAX: Final = 120.0
SETTINGS: Final = {
    # As of a table that is older than its binlog: what moves is a copy, and not its history.
    "zeppelin_store.binlog_bytes_min": 256 << 10,
    "zeppelin_store.binlog_bytes_max": 512 << 10,
    "zeppelin_store.flush_bytes": 256 << 10,
}


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much, and how long things take that do not end by themselves."""

    nodes: int = 3
    joining: int = 3
    stores: int = 3
    partitions: int = 24
    replicas: int = 2
    keys: int = 60_000
    value_bytes: int = 1_000
    workers: int = 8
    seconds: float = 8.0
    down_ms: int = 6_000
    """Where loads and servers share two cores, nobody is to be taken for dead."""

    def settings(self) -> dict[str, int]:
        lease_ms = 2 * self.down_ms // 3
        timing = {"zeppelin_meta.lease_ms": lease_ms, "zeppelin_meta.down_ms": self.down_ms}
        return SETTINGS | timing


QUICK: Final = Pace(keys=5_000, seconds=2.0)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What happened between two moments, and what clients saw."""

    name: str
    seconds: float
    calls: int
    slots: list[float]
    """Requests per second, in each half of a second."""
    p50_ms: float
    p99_ms: float
    longest_ms: float
    moves: int
    moves_min: int
    copied_bytes: int
    streamed_bytes: int
    parked: int
    """Requests that waited for a hand-over."""
    masters: list[int]
    """Of each node, at the end."""
    replicas: list[int]

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    pace: Pace
    disk: str
    phases: list[Phase]
    said: Said

    @property
    def partition_bytes(self) -> float:
        """Keys and values of one partition, as they were filled in."""
        key_bytes = len("key:00000000")
        return self.pace.keys * (self.pace.value_bytes + key_bytes) / self.pace.partitions


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes have counted until the end of a phase."""

    name: str
    at_s: float
    copied_bytes: int = 0
    streamed_bytes: int = 0
    parked: int = 0
    moves: int = 0
    moves_min: int = 0
    masters: list[int] = []
    replicas: list[int] = []


class _Run:
    def __init__(self, cluster: KvProcesses, progress: Callable[[str], None]) -> None:
        self._cluster, self._progress = cluster, progress
        self._gone: Counter[str] = Counter()
        """What nodes had counted that have left."""
        self.marks = [_Mark(name="", at_s=time.monotonic())]

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[list[ClusterPlan]]:
        self._progress(name)
        plans: list[ClusterPlan] = []
        yield plans
        at_s = time.monotonic()
        counted = self._counted([*self._cluster.nodes])
        topology = self._cluster.topology()
        masters = Counter(each.master for each in topology.tables[TABLE].partitions)
        replicas = Counter(
            node for each in topology.tables[TABLE].partitions for node in each.replicas
        )
        mark = _Mark(
            name=name,
            at_s=at_s,
            moves=sum(len(plan.moves) for plan in plans),
            moves_min=sum(plan.moves_min for plan in plans),
            masters=[masters[node] for node in topology.nodes],
            replicas=[replicas[node] for node in topology.nodes],
            **{figure: counted[figure] + self._gone[figure] for figure in _COUNTED},
        )
        self.marks.append(mark)

    def _counted(self, nodes: Sequence[int]) -> Counter[str]:
        found: Counter[str] = Counter()
        for number in nodes:
            status = self._cluster.status(number)
            found["copied_bytes"] += status.copied_bytes
            found["streamed_bytes"] += status.streamed_bytes
            found["parked"] += status.parked.total
        return found

    def order(self, planner: Callable[[Topology], ClusterPlan]) -> ClusterPlan:
        """Make a plan, submit it, and wait until all of it is done."""

        async def work(meta: MetaClient) -> ClusterPlan:
            manager = ClusterManager(meta)
            plan, order = await manager.order(planner)
            await manager.wait(order, plan=plan, timeout_s=MOVES_S_MAX)
            return plan

        return self._cluster.ask(work)

    def join(self, count: int) -> list[int]:
        numbers = [self._cluster.begin_node() for _ in range(count)]
        for number in numbers:
            self._cluster.nodes[number].wait_ready()
        return numbers

    def leave(self, numbers: Sequence[int]) -> None:
        self._gone.update(self._counted(numbers))
        self._cluster.remove_nodes(numbers)

    def ids(self, numbers: Sequence[int]) -> list[NodeId]:
        return [self._cluster.nodes[number].id for number in numbers]


_COUNTED: Final = ("copied_bytes", "streamed_bytes", "parked")


def grow(
    pace: Pace | None = None,
    *,
    folder: pathlib.Path = CACHE / "data",
    progress: Callable[[str], None] = print,
) -> Growth:
    """More nodes, and fewer again, under one load."""
    pace = pace or Pace()
    disk = check_disk(folder)
    check_space(str(folder))
    config = TableConfig(partitions=pace.partitions, replicas=pace.replicas)
    with (
        tempfile.TemporaryDirectory(prefix="zeppelin-growth-", dir=folder) as own,
        kv_processes(
            pathlib.Path(own), stores=pace.stores, nodes=pace.nodes, settings=pace.settings()
        ) as cluster,
    ):
        progress("the table is filled")
        login = cluster.create_table(TABLE, config)
        given = Given(
            addresses=[
                f"127.0.0.1:{cluster.ports[each.name][0]}" for each in cluster.nodes.values()
            ],
            user=login.user,
            password=login.password,
            calls=f"{own}/calls",
            keys=pace.keys,
            value_bytes=pace.value_bytes,
            workers=pace.workers,
        )
        with _loaded(given) as load:
            marks = _story(_Run(cluster, progress), pace)
            said = _ended(load)
        calls = array.array("d")
        calls.frombytes(pathlib.Path(given.calls).read_bytes())
    return Growth(pace=pace, disk=disk, phases=_phases(marks, calls), said=said)


def _story(run: _Run, pace: Pace) -> list[_Mark]:
    few, many = pace.nodes, pace.nodes + pace.joining
    with run.phase(f"{few} nodes"):
        time.sleep(pace.seconds)
    with run.phase(f"{pace.joining} are started"):
        joined = run.join(pace.joining)
    with run.phase(f"{few} → {many}") as plans:
        plans.append(run.order(lambda topology: expand(topology, run.ids(joined))))
    with run.phase(f"{many} nodes"):
        time.sleep(pace.seconds)
    with run.phase(f"{many} → {few}") as plans:
        plans.append(run.order(lambda topology: drain(topology, run.ids(joined))))
    with run.phase(f"{pace.joining} are stopped"):
        run.leave(joined)
    with run.phase(f"{few} nodes again"):
        time.sleep(pace.seconds)
    return run.marks


@contextlib.contextmanager
def _loaded(given: Given) -> Iterator[subprocess.Popen[str]]:
    """Once the table is filled."""
    command = (sys.executable, "-m", "benchmarks.zeppelin.growth_load")
    with subprocess.Popen(
        (*command, msgspec.json.encode(given).decode()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as load:
        try:
            output: IO[str] | None = load.stdout
            if output is None or output.readline() != "ready\n":
                raise ClusterFailed("the table could not be filled")
            yield load
        finally:
            load.kill()


def _ended(load: subprocess.Popen[str]) -> Said:
    try:
        output, _ = load.communicate("", timeout=LOAD_S_MAX)
    except subprocess.TimeoutExpired:
        raise ClusterFailed(f"the load does not end within {LOAD_S_MAX:.0f} s") from None
    if load.returncode:
        raise ClusterFailed("the load has failed")
    return msgspec.json.decode(output.splitlines()[-1], type=Said)


def _phases(marks: Sequence[_Mark], calls: Sequence[float]) -> list[Phase]:
    pairs = sorted(zip(calls[::2], calls[1::2], strict=True))
    found = []
    for before, mark in itertools.pairwise(marks):
        inside = [pair for pair in pairs if before.at_s <= pair[0] < mark.at_s]
        took = sorted(took_s for _, took_s in inside) or [0.0]
        slots = Counter(int((at_s - before.at_s) / SLOT_S) for at_s, _ in inside)
        whole = int((mark.at_s - before.at_s) / SLOT_S)
        found.append(
            Phase(
                name=mark.name,
                seconds=mark.at_s - before.at_s,
                calls=len(inside),
                slots=[slots[number] / SLOT_S for number in range(whole)],
                p50_ms=1_000 * took[len(took) // 2],
                p99_ms=1_000 * took[int(len(took) * 0.99)],
                longest_ms=1_000 * took[-1],
                moves=mark.moves,
                moves_min=mark.moves_min,
                copied_bytes=mark.copied_bytes - before.copied_bytes,
                streamed_bytes=mark.streamed_bytes - before.streamed_bytes,
                parked=mark.parked - before.parked,
                masters=mark.masters,
                replicas=mark.replicas,
            )
        )
    return found
