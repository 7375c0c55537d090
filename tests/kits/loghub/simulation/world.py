"""Log stores, gateways, clients and faults in a simulation, from start to verdict."""

import asyncio
import random

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.shards import LOG_PREFIX, is_settled
from raftwood.loghub.wire import CreateLogstore, CreateProject, LogstoreOptions
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.server.cluster import METASTORE_SHARD
from raftwood.testing import FaultInjector, Machine, Simulation, SimulationReport, SwarmProfile
from tests.kits.loghub.simulation.cluster import GATEWAY_PORT, HubCluster, gateway_name
from tests.kits.loghub.simulation.crash_points import CrashPoints
from tests.kits.loghub.simulation.link import PROJECT, Link
from tests.kits.loghub.simulation.metadata_watch import MetadataWatch
from tests.kits.loghub.simulation.notebook import Content, Notebook
from tests.kits.loghub.simulation.workload import (
    LOGSTORE,
    Actor,
    Anonymous,
    Churner,
    Follower,
    Load,
    Looker,
    Operator,
    Producer,
    Shipper,
    Tailer,
)
from tests.kits.logservice.log_cluster import KEEPER
from tests.kits.logservice.simulation.world import CALM_KEEPER, DISK_LOG, RAFT, SMALL
from tests.kits.models import run_scenario

FAULTS_S = 8.0
SETTLING_S = 60.0
"""Once the faults have stopped, all that was begun is finished within this time."""
FAULTS = ("kill", "power_loss", "partition", "one_way_cut", "pause", "wall_jump", "reset", "stall")
_CALM = (1.0, 2.0, 4.0)
_LOOK_EVERY_S = 0.25
_RAFT = msgspec.structs.replace(RAFT, tick_ms=80, election_ticks=6)
_SLOW_RAFT = msgspec.structs.replace(RAFT, tick_ms=320, election_ticks=6)
_SLOW_KEEPER = msgspec.structs.replace(CALM_KEEPER, log_shards=0)
_KEEPER = msgspec.structs.replace(
    KEEPER, log_shards=0, tick_ms=150, heartbeat_ms=250, store_down_ticks=60
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What runs."""

    faults_s: float = FAULTS_S
    gateways: int = 2
    pause_s: float = 0.15
    reshard_every_s: float = 1.0
    timeout_ms: int = 3_000
    retained_bytes_max: int = 0
    crash_share: float = 0.0
    """Of the steps of gateways' operations at which the gateway is killed."""
    late_share: float = 0.0
    """Of these steps that come seconds late."""
    churners: int = 1
    is_slow: bool = False
    """Raft, the keeper and retention look at the time more seldom."""
    settling_s: float = SETTLING_S


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    records: int
    acked: int
    counts: dict[str, int]
    faults: dict[str, int]
    crashes: int
    changes: int
    faults_s: float
    """Without any fault, 0."""
    settled_after_s: float


class Stuck(AssertionError):
    """The faults are over, and something does not come to its end."""


class _Run:
    """One simulation under way."""

    def __init__(self, simulation: Simulation, plan: Plan, profile: SwarmProfile) -> None:
        self._simulation = simulation
        self._plan = plan
        self._profile = profile
        self._notebook = Notebook(lambda: simulation.now)
        self._watch = MetadataWatch(self._notebook.breaks)
        self._cluster = HubCluster(
            simulation,
            flags=(
                f"loghub.retention_ms={4_000 if plan.is_slow else 1_000}",
                "loghub.stray_log_ms=2000",
                "logservice.record_bytes_max=2048",
            ),
            machine=self._watch.machine,
            service=msgspec.structs.replace(SMALL, truncation_ms=2_000) if plan.is_slow else SMALL,
            keeper=_SLOW_KEEPER if plan.is_slow else _KEEPER,
            raft=_SLOW_RAFT if plan.is_slow else _RAFT,
            log=DISK_LOG,
        )
        self._addresses = [
            f"{gateway_name(number)}:{GATEWAY_PORT}" for number in range(1, plan.gateways + 1)
        ]
        self._crashes = CrashPoints(simulation, share=plan.crash_share, late_share=plan.late_share)
        self._until = 0.0
        self._key: AccessKey
        self._keeper: KeeperClient

    async def run(self) -> Outcome:
        course = asyncio.create_task(self._course())
        watching = asyncio.create_task(self._look())
        await asyncio.wait([course, watching], return_when=asyncio.FIRST_COMPLETED)
        for task in (course, watching):
            if not task.done():
                task.cancel()
        await asyncio.wait([course, watching])
        if not watching.cancelled():
            watching.result()
        return course.result()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self._notebook.broken is not None:
                raise self._notebook.broken

    async def _course(self) -> Outcome:
        simulation, plan, cluster = self._simulation, self._plan, self._cluster
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(METASTORE_SHARD)
        numbers = range(1, plan.gateways + 1)
        cluster.start_gateways(*numbers)
        await cluster.until(lambda: all(cluster.serves(each) for each in numbers))
        await self._prepare()
        until = self._until = simulation.now + plan.faults_s
        clients = self._start_clients(until)
        injector = FaultInjector(
            simulation,
            self._profile,
            machines=[*cluster.machines.values(), *cluster.gateways.values()],
            others=[machine.name for machine in clients],
        )
        with self._crashes.planted():
            self._crashes.is_armed = True
            began = simulation.now
            await injector.run(until=until)
            self._crashes.is_armed = False
            ended = simulation.now
            await self._clients_end(clients)
            await self._settle()
            settled_after_s = simulation.now - ended
            await self._judge()
        await cluster.stop_gateways()
        await cluster.close_clients()
        await cluster.stop()
        notebook = self._notebook
        return Outcome(
            records=len(notebook.sent),
            acked=notebook.counts.get("acked", 0),
            counts=notebook.counts,
            faults=injector.counts,
            crashes=self._crashes.count,
            changes=self._watch.changes,
            faults_s=ended - began if injector.counts or self._crashes.count else 0.0,
            settled_after_s=settled_after_s,
        )

    # The beginning

    async def _prepare(self) -> None:
        gateway = self._cluster.servers[1].gateway
        self._key = await gateway.access.create({"*": AccessRole.ADMIN})
        await asyncio.sleep(1.0)  # until every gateway has heard of the key
        options = LogstoreOptions(retained_bytes_max=self._plan.retained_bytes_max, ttl_days=0)
        self._notebook.retained_bytes_max = self._plan.retained_bytes_max
        link = self._link()
        await link.control(CreateProject(project=PROJECT))
        await link.control(
            CreateLogstore(project=PROJECT, logstore=LOGSTORE, shard_count=1, options=options)
        )
        await link.close()

    def _link(self) -> Link:
        return Link(self._simulation.environment, self._key, self._addresses, timeout_ms=8_000)

    def _start_clients(self, until: float) -> list[Machine]:
        plan, notebook = self._plan, self._notebook
        load = Load(
            until=until,
            key=self._key,
            addresses=self._addresses,
            pause_s=plan.pause_s,
            reshard_every_s=plan.reshard_every_s,
            timeout_ms=plan.timeout_ms,
        )
        actors: list[Actor] = [Producer("p1", notebook, load)]
        actors += [
            Shipper("q1", notebook, load),
            Anonymous("a1", notebook, load),
            Follower("f1", notebook, load),
            Tailer("t1", notebook, load, late_s=0.0),
            Tailer("t2", notebook, load, late_s=0.6 * plan.faults_s),
            Looker("l1", notebook, load),
            Operator("o1", notebook, load),
            Operator("o2", notebook, load),
        ]
        actors += [Churner(f"c{each}", notebook, load) for each in range(plan.churners)]
        machines = []
        for actor in actors:
            machine = self._simulation.add_node(actor.name)
            machine.start(actor.run)
            machines.append(machine)
        return machines

    # The end

    async def _clients_end(self, clients: list[Machine]) -> None:
        """Readers come to their end once nothing more is sent."""
        senders = [each for each in clients if not each.name.startswith("t")]
        limit_s = self._plan.settling_s
        try:
            await self._until_ended(senders)
            self._notebook.is_over = True
            await self._until_ended(clients)
        except TimeoutError as error:
            left = [each.name for each in clients if each.running]
            raise Stuck(f"{left} are not answered, {limit_s} s after the faults") from error

    async def _until_ended(self, machines: list[Machine]) -> None:
        await self._simulation.wait_until(
            lambda: not any(each.running for each in machines), timeout_s=self._plan.settling_s
        )

    async def _settle(self) -> None:
        """Whatever was begun is finished, by whomever; no log is left that nobody knows."""
        self._keeper = self._cluster.operator()
        deadline = self._simulation.now + self._plan.settling_s
        while True:
            reason = await self._unsettled()
            if not reason:
                return
            if self._simulation.now > deadline:
                raise Stuck(f"{self._plan.settling_s} s after the faults: {reason}")
            await asyncio.sleep(0.5)

    async def _unsettled(self) -> str:
        if not all(self._cluster.serves(each) for each in self._cluster.gateways):
            return "a gateway does not serve"
        for logstore in self._watch.logstores:
            if not is_settled(logstore):
                return f"half-done: {logstore}"
        known = sorted(each.log for found in self._watch.logstores for each in found.shards)
        try:
            names = sorted(await self._keeper.log_names(LOG_PREFIX))
        except RaftwoodError as error:
            return f"the logs are not known: {error}"
        if names != known:
            return f"logs {names}, of which shards have {known}"
        return ""

    async def _judge(self) -> None:
        link = self._link()
        shards = await link.shards(LOGSTORE)
        self._notebook.saw_shards(shards)
        final = {}
        for shard in shards:
            first, records = await link.read_shard(LOGSTORE, shard.id)
            final[shard.id] = Content(shard, first, records)
        await link.close()
        self._notebook.check(final)


def choose_plan(seed: int, *, faults_s: float = FAULTS_S) -> Plan:
    source = random.Random(f"hub plan {seed}")
    return Plan(
        faults_s=faults_s,
        gateways=source.choice((2, 3)),
        pause_s=source.choice((0.05, 0.15, 0.3)),
        reshard_every_s=source.choice((0.3, 0.6, 1.2)),
        timeout_ms=source.choice((600, 2_500)),
        retained_bytes_max=source.choice((0, 0, 300)),
        crash_share=source.choice((0.0, 0.03, 0.1)),
        late_share=source.choice((0.0, 0.05)),
        churners=source.choice((0, 1, 2)),
    )


def choose_profile(seed: int) -> SwarmProfile:
    return SwarmProfile.choose(f"hub {seed}", allowed=FAULTS, calm=_CALM[seed % len(_CALM)])


def run_hub(
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
        "hub", seed, scenario, twice=twice, disk=profile.disk, virtual_seconds_max=1200.0
    )
