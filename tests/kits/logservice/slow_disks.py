"""Log stores whose disks are slow: what their clients feel, who leads, and what the log holds."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from raftwood.logservice.client import append_pipeline
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.records import record_name
from raftwood.net import stores
from raftwood.raft import leadership
from raftwood.raft.engine import RaftEngine
from raftwood.raft.leadership import SlowLeader
from raftwood.raft.node_host import NodeHost
from raftwood.testing import DiskProfile
from tests.kits.logservice.log_cluster import SERVICE, LogCluster, run_log_cluster
from tests.kits.models import Mutant, Violation, replaced, together

SLOW: Final = DiskProfile(sync_s=(1.5, 1.5))
QUICK: Final = DiskProfile()
SETTLED_S: Final = 5.0
LATENCY_S_MAX: Final = 3.0
"""Of 99 in 100 appends, once a slow leader had `SETTLED_S` to hand over."""
WORKERS: Final = 6
TIMEOUT_MS: Final = 20_000
PATIENCE_MS: Final = 80_000
STORES: Final = (1, 2, 3)
SETTINGS: Final = msgspec.structs.replace(SERVICE, snapshot_entries=10_000)
"""The disks are slow enough without snapshots."""
TURN_S: Final = 6.0
TURNS: Final = 15
HAND_OVERS_MAX: Final = 12
"""Of two shards, while the disk of the leader becomes slow every `TURN_S`."""


class Load:
    """Appends one after the other by several workers; half of them under names of their own."""

    def __init__(self, client: AsyncLogClient) -> None:
        self.client = client
        self.latencies: list[tuple[float, float]] = []
        """When an append began, and how long it took."""
        self.lsns: list[int] = []
        self._ends = False
        self._tasks = [asyncio.create_task(self._append(worker)) for worker in range(WORKERS)]

    async def _append(self, worker: int) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while not self._ends:
            number += 1
            began = loop.time()
            record = b"%d of %d" % (number, worker)
            if worker % 2:
                lsn = await self.client.append(record)
            else:
                name = f"producer {worker}"
                lsn = await self.client.append_once(record, producer=name, sequence=number)
            self.latencies.append((began, loop.time() - began))
            self.lsns.append(lsn)
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    def p99_s(self, since: float) -> float:
        took = sorted(each for began, each in self.latencies if began >= since)
        return took[len(took) * 99 // 100]


async def check_log(cluster: LogCluster, load: Load) -> None:
    """Each acked record has a place of its own, and no record stands in the log twice."""
    if len(set(load.lsns)) != len(load.lsns):
        raise Violation("two records have one LSN")
    store = await cluster.wait_for_leader(1)
    host = cluster.stores[store].host
    names: Counter[bytes] = Counter()
    index = 1
    while index <= host.applied(1):
        entries, index = await host.read_log(1, index)
        found = (record_name(bytes(entry.payload)) for entry in entries)
        names.update(name for name in found if name is not None)
    twice = [count for count in names.values() if count > 1]
    if twice:
        raise Violation("records stand in the log again", f"{len(twice)} of {len(names)}")


def set_disks(cluster: LogCluster, profile: DiskProfile, *stores: int) -> None:
    for store, machine in cluster.machines.items():
        machine.disk.profile = profile if store in stores else QUICK


def hand_overs(cluster: LogCluster) -> int:
    """For slow disks, by all stores and of all shards."""
    return sum(each.host.slow_hand_overs for each in cluster.stores.values())


def _run(seed: int, scenario: Callable[[LogCluster, Load], Coroutine[Any, Any, None]]) -> None:
    async def whole(cluster: LogCluster) -> None:
        cluster.start(*STORES)
        await cluster.wait_for_leader(1)
        async with await cluster.client(timeout_ms=TIMEOUT_MS) as client:
            load = Load(client)
            await asyncio.sleep(1.0)
            await scenario(cluster, load)
            set_disks(cluster, QUICK)
            await load.end()
            await check_log(cluster, load)

    run_log_cluster(whole, seed=seed, service=SETTINGS)


def run_slow_leader(seed: int) -> None:
    """The leader's disk becomes slow: another one leads soon, and for good."""

    async def scenario(cluster: LogCluster, load: Load) -> None:
        slow = await cluster.wait_for_leader(1)
        began = cluster.simulation.now
        set_disks(cluster, SLOW, slow)
        await asyncio.sleep(SETTLED_S + 15.0)
        p99_s = load.p99_s(began + SETTLED_S)
        if p99_s > LATENCY_S_MAX:
            raise Violation("appends take too long", f"p99 {p99_s:.2f} s")
        if cluster.leader(1) in (0, slow):
            raise Violation("the store with the slow disk leads")
        changes = [each.host.leader_changes(1) for each in cluster.stores.values()]
        if max(changes) > 3:
            raise Violation("leadership goes to and fro", f"{max(changes)} changes")

    _run(seed, scenario)


def run_slow_everywhere(seed: int) -> None:
    """All disks are slow: nobody hands over, and each append is answered all the same."""

    async def scenario(cluster: LogCluster, load: Load) -> None:
        set_disks(cluster, SLOW, *STORES)
        began = cluster.simulation.now
        await asyncio.sleep(20.0)
        if hand_overs(cluster):
            raise Violation("leadership was handed to a disk that is as slow")
        if not any(each >= began for each, _ in load.latencies):
            raise Violation("nothing was acked")

    _run(seed, scenario)


def run_turns(seed: int) -> None:
    """Another disk is slow every few seconds: leadership does not follow each time."""

    async def scenario(cluster: LogCluster, load: Load) -> None:  # noqa: ARG001
        for _ in range(TURNS):
            set_disks(cluster, SLOW, cluster.leader(1))
            await asyncio.sleep(TURN_S)
        if hand_overs(cluster) > HAND_OVERS_MAX:
            raise Violation("leadership goes to and fro", f"{hand_overs(cluster)} hand-overs")

    _run(seed, scenario)


_propose_batch = NodeHost.propose_batch


def _propose_all_again(
    host: NodeHost,
    group: int,
    payloads: Sequence[bytes],
    done: Any,
    *,
    again: bool = False,  # noqa: ARG001
    **rest: Any,
) -> None:
    """As release 0.1.0 does, which passes over the flag."""
    _propose_batch(host, group, payloads, done, **rest)


staying = replaced(SlowLeader, tick=lambda *_: ())
proposing_again = replaced(NodeHost, propose_batch=_propose_all_again)
_impatient = lambda _: stores.ATTEMPT_MS  # noqa: E731


def run_slow_leader_of_before(seed: int) -> None:
    """Stores of before neither hand over nor know repetitions: an attempt outlasts a commit."""

    async def whole(cluster: LogCluster) -> None:
        cluster.start(*STORES)
        await cluster.wait_for_leader(1)
        async with await cluster.client(timeout_ms=PATIENCE_MS) as client:
            load = Load(client)
            await asyncio.sleep(1.0)
            began = cluster.simulation.now
            set_disks(cluster, SLOW, await cluster.wait_for_leader(1))
            await asyncio.sleep(PATIENCE_MS / 1000 / 2)
            if not any(each >= began for each, _ in load.latencies):
                raise Violation("nothing was acked")
            set_disks(cluster, QUICK)
            await load.end()

    with proposing_again(), staying():
        run_log_cluster(whole, seed=seed, service=SETTINGS)


_complete = RaftEngine._complete


def _complete_without_a_word(turns: RaftEngine, tickets: Any) -> None:
    """Who has waited for a write to end waits on while there are two others."""
    _complete(turns, tickets)
    for replica in turns._dirty:
        replica.has_waited = False


MUTANTS = {
    "what is sent again is proposed again": Mutant(run_slow_leader, proposing_again, harm="again"),
    "a slow leader goes on leading": Mutant(run_slow_leader, staying, harm="too long"),
    "no stall is too short, and no rest needed": Mutant(
        run_turns,
        replaced(leadership, HOLD_ELECTIONS=0, REST_ELECTIONS=0, REST_ELECTIONS_MAX=0),
        harm="to and fro",
    ),
    "writes for other leaders' groups leave proposals no room": Mutant(
        run_slow_leader_of_before,
        replaced(RaftEngine, _complete=_complete_without_a_word),
        first=1,
        harm="nothing was acked",
    ),
    "each attempt is as short as the first": Mutant(
        run_slow_leader_of_before,
        together(
            replaced(append_pipeline, attempt_ms=_impatient),
            replaced(stores, attempt_ms=_impatient),
        ),
        harm="nothing was acked",
    ),
}
