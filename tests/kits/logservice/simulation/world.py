"""Log stores, clients and faults in a simulation, from start to verdict."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, RaftwoodError, StoreDamaged, StoreError, Unavailable
from raftwood.disk.segment_log import LogSettings
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.records import Record, RecordKind
from raftwood.logservice.settings import HaKeeperSettings, LogServiceSettings
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.settings import RaftHostSettings
from raftwood.testing import (
    DISK_ERRORS,
    FAULTS,
    FaultInjector,
    Machine,
    Simulation,
    SimulationReport,
    SwarmProfile,
)
from tests.kits.logservice.log_cluster import (
    CLIENT,
    KEEPER,
    OPERATOR,
    SERVICE,
    LogCluster,
    address,
)
from tests.kits.logservice.simulation.records import Notebook, check_leases
from tests.kits.logservice.simulation.watch import Watch
from tests.kits.logservice.simulation.workload import (
    SHARD,
    Actor,
    Cutter,
    Follower,
    Keyed,
    Leases,
    Load,
    Looker,
    Writer,
    text_of,
)
from tests.kits.models import Violation, run_scenario

FIRST = (1, 2, 3)
DYING = 3
FAULTS_S = 12.0
LIVENESS_S = 30.0
"""Once the faults have stopped, a record is taken within this time."""
_CALM = (1.0, 2.0, 4.0)
_CONVERGENCE_S = 90.0
_TAIL_WAIT_MS = 8_000
_TAIL_LATE_S = 5.0

# Small, so that a short run rolls segments, reads from the disk, thins and sends snapshots.
RAFT = RaftHostSettings(
    tick_ms=200,
    election_ticks=8,
    message_bytes_max=1 << 10,
    in_flight_bytes_max=8 << 10,
    proposal_bytes_max=4 << 10,
    entry_cache_bytes_max=1 << 10,
    snapshot_chunk_bytes=4 << 10,
    quiesce_ticks=4,
)
DISK_LOG = LogSettings(
    segment_bytes=64 << 10, flush_bytes_max=8 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)
SMALL = msgspec.structs.replace(
    SERVICE, record_bytes_max=2 << 10, truncation_ms=300, snapshot_entries=12, snapshots_kept=4
)
CALM_KEEPER = msgspec.structs.replace(KEEPER, tick_ms=400, heartbeat_ms=1_000, store_down_ticks=20)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What runs."""

    faults_s: float = FAULTS_S
    pause_s: float = 0.25
    has_leases: bool = False
    cut_every_s: float = 1.0
    timeout_ms: int = 4_000
    big_share: float = 0.0
    is_replaced: bool = False
    """One store dies for good, and two others join."""
    transfer_every_s: float | None = None
    """Between two changes of the shard's leader."""
    service: LogServiceSettings = SMALL
    keeper: HaKeeperSettings = CALM_KEEPER


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    operations: int
    acked: int
    refused: int
    cuts: int
    faults: dict[str, int]
    terms: int
    faults_s: float
    """How long they were really on."""
    live_after_s: float


class Stuck(AssertionError):
    """The faults are over, and the log does not come back to life."""


class SupervisedCluster(LogCluster):
    """As a supervisor runs it: what fills the disk ends a store, and it is started again."""

    def _program(
        self, store: int, *, joins: bool
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        program = super()._program(store, joins=joins)

        async def supervised(environment: Environment) -> None:
            try:
                await program(environment)
            except StoreDamaged:
                raise  # that must never come of a fault of these kinds
            except (DiskFull, StoreError) as error:
                environment.end_process(f"no start: {error}")

        return supervised


class _Run:
    """One simulation under way."""

    def __init__(self, simulation: Simulation, plan: Plan, profile: SwarmProfile) -> None:
        self._simulation = simulation
        self._plan = plan
        self._profile = profile
        self._random = random.Random(f"log world {simulation.seed}")
        self._cluster = SupervisedCluster(
            simulation,
            first=FIRST,
            service=plan.service,
            keeper=plan.keeper,
            raft=RAFT,
            log=DISK_LOG,
        )
        self._notebook = Notebook(lambda: simulation.now)
        self._watch = Watch(self._cluster)
        self._gone: set[int] = set()

    async def run(self) -> Outcome:
        course = asyncio.create_task(self._course())
        watching = asyncio.create_task(self._watch.look())
        await asyncio.wait([course, watching], return_when=asyncio.FIRST_COMPLETED)
        for task in (course, watching):
            if not task.done():
                task.cancel()
        await asyncio.wait([course, watching])
        if not watching.cancelled():
            watching.result()
        return course.result()

    async def _course(self) -> Outcome:
        simulation, plan, cluster = self._simulation, self._plan, self._cluster
        cluster.start(*FIRST)
        await cluster.wait_for_leader(SHARD)
        if plan.is_replaced:
            cluster.start(4, 5, joins=True)
        began = simulation.now
        until = began + plan.faults_s
        clients = self._start_clients(until)
        stores = [
            machine
            for store, machine in cluster.machines.items()
            if not (plan.is_replaced and store == DYING)
        ]
        others = [machine.name for machine in clients]
        injector = FaultInjector(simulation, self._profile, machines=stores, others=others)
        await asyncio.gather(
            injector.run(until=until), self._die(plan.faults_s / 3), self._transfer(until)
        )
        faults_s = min(simulation.now, until) - began
        live_after_s = await self._come_to_life()
        await simulation.wait_until(
            lambda: not any(each.running for each in clients), timeout_s=_CONVERGENCE_S
        )
        await self._converge()
        await self._judge()
        await cluster.close_clients()
        await cluster.stop()
        events = self._notebook.history.events
        return Outcome(
            operations=len(events),
            acked=len(self._notebook.acked_lsns),
            refused=self._notebook.refused,
            cuts=sum(cut.acked is not None for cut in self._notebook.cuts),
            faults=injector.counts,
            terms=self._watch.terms,
            faults_s=faults_s,
            live_after_s=live_after_s,
        )

    def _start_clients(self, until: float) -> list[Machine]:
        load = Load(
            until=until,
            addresses=[address(store) for store in FIRST],
            pause_s=self._plan.pause_s,
            has_leases=self._plan.has_leases,
            cut_every_s=self._plan.cut_every_s,
            timeout_ms=self._plan.timeout_ms,
            big_share=self._plan.big_share,
        )
        notebook, leases = self._notebook, Leases()
        actors: list[Actor] = [Writer(name, notebook, load, leases) for name in ("w1", "w2", "w3")]
        actors += [
            Keyed("keyed", notebook, load),
            Follower("follower", notebook, load),
            Looker("looker", notebook, load),
            Cutter("cutter", notebook, load),
        ]
        machines = []
        for actor in actors:
            machine = self._simulation.add_node(actor.name)
            machine.start(actor.run)
            machines.append(machine)
        return machines

    # What happens beside the faults

    async def _die(self, after_s: float) -> None:
        if self._plan.is_replaced:
            await asyncio.sleep(after_s)
            self._cluster.machines[DYING].power_off()
            self._gone.add(DYING)

    async def _transfer(self, until: float) -> None:
        every_s = self._plan.transfer_every_s
        if every_s is None:
            return
        addresses = {store: address(store) for store in FIRST}
        async with AsyncRaftClient(self._simulation.environment, OPERATOR, addresses) as client:
            while self._simulation.now < until:
                await asyncio.sleep(self._random.uniform(0, 2 * every_s))
                try:
                    store = self._random.choice(FIRST)
                    await client.admin.transfer(SHARD, store, timeout_ms=2_000)
                except RaftwoodError:
                    continue

    # The end

    async def _client(self) -> AsyncLogClient:
        alive = [address(store) for store in self._cluster.machines if store not in self._gone]
        while True:
            try:
                return await AsyncLogClient.connect(
                    self._simulation.environment, CLIENT, alive, shard=SHARD, timeout_ms=15_000
                )
            except Unavailable:
                await asyncio.sleep(0.2)  # no store is up again yet

    async def _come_to_life(self) -> float:
        """Bounded liveness; answers how long it took."""
        began = self._simulation.now
        try:
            async with asyncio.timeout(LIVENESS_S):
                async with await self._client() as client:
                    await client.info()
                    await self._wake_a_reader(client)
        except (TimeoutError, RaftwoodError) as error:
            raise Stuck(f"no record is taken {LIVENESS_S} s after the faults: {error!r}") from error
        return self._simulation.now - began

    async def _wake_a_reader(self, client: AsyncLogClient) -> None:
        """Whoever waits at the end of the log hears at once of what comes."""
        # A writer that still waits for its answers may come first: so the last word counts.
        end = (await client.info()).log.next_lsn
        began = self._simulation.now
        reader = asyncio.create_task(client.read(end, wait_ms=_TAIL_WAIT_MS))
        await asyncio.sleep(1.0)
        await client.update_leaseholder_id(1 << 40)
        event = self._notebook.history.call("life", "append", "life", key="log")
        lsn = await client.append(b"life")
        self._notebook.history.finish(event, "ok", lsn)
        with suppress(LsnTruncated):  # by a client whose last word comes late
            await reader
        if self._simulation.now - began > _TAIL_LATE_S:
            raise Violation("a reader at the end of the log slept on when a record came")

    def _members(self) -> list[int]:
        leader = self._cluster.leader(SHARD)
        if not leader:
            return []
        status = self._cluster.stores[leader].host.status(SHARD)
        return sorted((*status.voters, *status.learners))

    async def _converge(self) -> None:
        try:
            await self._simulation.wait_until(self._is_even, timeout_s=_CONVERGENCE_S)
        except TimeoutError as error:
            raise Stuck(f"the replicas stay apart: {self._describe()}") from error

    def _is_even(self) -> bool:
        members, cluster = self._members(), self._cluster
        if len(members) != len(FIRST) or any(store in self._gone for store in members):
            return False
        if not all(cluster.is_running(store) for store in members):
            return False
        hosts = [cluster.stores[store].host for store in members]
        if not all(SHARD in host.groups() for host in hosts):
            return False
        applied = {host.status(SHARD).last_index for host in hosts}
        return len(applied) == 1 and {host.applied(SHARD) for host in hosts} == applied

    def _describe(self) -> str:
        lines = [f"members {self._members()}, gone {sorted(self._gone)}"]
        for store, each in self._cluster.stores.items():
            if self._cluster.machines[store].running:
                lines += [str(each.host.status(shard)) for shard in each.host.groups()]
                lines += [f"store {store}: {each.alarms()}"]
        return "\n".join(lines)

    async def _judge(self) -> None:
        await self._watch.compare(SHARD, self._members())
        async with await self._client() as client:
            log = (await client.info()).log
            users = await _read_all(client, log.first_lsn, has_internal=False)
            everything = await _read_all(client, log.first_lsn, has_internal=True)
        check_leases(everything, log.lease_history)
        if users != [each for each in everything if each.kind is RecordKind.USER]:
            raise Violation("users' records are others where internal ones are read as well")
        final = [(each.lsn, text_of(each)) for each in users]
        self._notebook.check(final, first_lsn=log.first_lsn)


async def _read_all(client: AsyncLogClient, lsn: int, *, has_internal: bool) -> list[Record]:
    found: list[Record] = []
    while True:
        records, next_lsn = await client.read(lsn, has_internal=has_internal)
        found += records
        if next_lsn == lsn:
            return found
        lsn = next_lsn


def choose_plan(seed: int, *, faults_s: float = FAULTS_S) -> Plan:
    source = random.Random(f"log plan {seed}")
    return Plan(
        faults_s=faults_s,
        pause_s=source.choice((0.15, 0.3)),
        has_leases=source.random() < 0.5,
        cut_every_s=source.choice((0.5, 1.0, 3.0)),
        timeout_ms=source.choice((500, 2_500, 6_000)),
        big_share=source.choice((0.0, 0.0, 0.0, 0.01)),
        is_replaced=seed % 4 == 3,
        transfer_every_s=source.choice((None, None, 1.5)),
    )


def choose_profile(seed: int) -> SwarmProfile:
    return SwarmProfile.choose(seed, allowed=(*FAULTS, *DISK_ERRORS), calm=_CALM[seed % len(_CALM)])


def run_logs(
    seed: int,
    plan: Plan | None = None,
    *,
    profile: SwarmProfile | None = None,
    twice: bool = False,
) -> SimulationReport[Outcome]:
    """Run one seed, with a plan and a profile drawn from it; raises what it found."""
    profile = profile or choose_profile(seed)
    plan = plan or choose_plan(seed)

    async def scenario(simulation: Simulation) -> Outcome:
        return await _Run(simulation, plan, profile).run()

    return run_scenario(
        "logs", seed, scenario, twice=twice, disk=profile.disk, virtual_seconds_max=1200.0
    )
