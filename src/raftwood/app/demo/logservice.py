"""The log service under fire: it sets itself up, loses stores, repairs itself, and loses no record.

Stores are real processes. Clients append batches to all shards; the parent truncates, kills stores
and starts another one, and HAKeeper does the rest. What is about to be truncated is read before,
everything else at the end: each acked record has to be found, once, where it was acked.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from raftwood.app.cluster_network import client_network, operator_network
from raftwood.app.demo.keeper_watch import KeeperWatch, is_caught_up
from raftwood.app.demo.log_check import Check
from raftwood.app.demo.log_load import Load
from raftwood.app.demo.log_outcome import Outcome, Plan, Truncation
from raftwood.app.demo.log_truncation import truncate_half
from raftwood.app.demo.store_processes import StoreProcesses
from raftwood.app.demo.story import Step, Story
from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.reports import is_log
from raftwood.logservice.hakeeper.state import Phase
from raftwood.logservice.hakeeper.views import ClusterView
from raftwood.net.stores import Stores

FIRST, LATER = (1, 2, 3), 4
CLIENTS_PER_SHARD = 2
_WAIT_S = 60.0
_TIMEOUT_MS = 30_000
_BATCH = 200
_CALM_BATCH = 50
_CALM_PAUSE_S = 0.04
"""While stores are killed: it is to be seen how long that takes, not how busy the machine is."""
_LOOK_S = 0.05


class Listener(msgspec.Struct, frozen=True):
    """Who hears what while it happens."""

    on_step: Callable[[Step], None]
    on_progress: Callable[[str, int, int], None]
    """A part's name, how much of it is done, and of how much."""
    on_load: Callable[[Load], None]
    on_view: Callable[[ClusterView], None]
    """HAKeeper's view at the end of a part."""


class _Demo:
    def __init__(
        self,
        processes: StoreProcesses,
        watch: KeeperWatch,
        load: Load,
        story: Story,
        plan: Plan,
        listener: Listener,
    ) -> None:
        self._processes = processes
        self._watch = watch
        self._load = load
        self._tell = story.tell
        self._plan = plan
        self._listener = listener
        self._shards = range(1, plan.shards + 1)
        self._next_lsns: dict[int, int] = {}
        self.check = Check(())
        self.full_speed = self.under_faults = load.rates()
        self.truncations: list[Truncation] = []
        self.failover_ms: dict[int, float] = {}
        self.bootstrap_ms = self.loss_pause_ms = self.detection_ms = 0.0
        self.repair_ms = self.catch_up_ms = 0.0

    # The parts

    async def bootstrap(self) -> None:
        began = time.perf_counter()
        self._listener.on_progress("three stores start", 0, 0)
        await asyncio.gather(*(self._processes.start(store) for store in FIRST))
        self._tell("three stores serve")
        view = await self._watch.until(self._is_set_up, "every shard has a leader", wait_s=_WAIT_S)
        self.bootstrap_ms = _ms_since(began)
        self._tell(
            f"{self._plan.shards} shards and HAKeeper have leaders, {self.bootstrap_ms:,.0f} ms "
            "after the start of the first process"
        )
        self._listener.on_view(view)

    def _is_set_up(self, view: ClusterView) -> bool:
        logs = sum(is_log(shard.shard) for shard in view.shards)
        is_led = all(shard.leader for shard in view.shards)
        return view.phase is Phase.RUNNING and is_led and logs == self._plan.shards

    async def append(self) -> None:
        load, records = self._load, self._plan.records
        load.begin_part()
        while load.acked < records:
            self._listener.on_progress("append", load.acked, records)
            await asyncio.sleep(_LOOK_S)
        self.full_speed = rates = load.rates()
        self._tell(
            f"{rates.records:,} records appended: {rates.records_per_second:,.0f} a second, a "
            f"batch of {load.batch} in {rates.batch_p50_ms:.1f} ms, p99 {rates.batch_p99_ms:.1f}"
        )
        load.batch, load.pause_s = _CALM_BATCH, _CALM_PAUSE_S
        load.begin_part()

    async def truncate(self, clients: Sequence[AsyncLogClient]) -> None:
        """About the first half of each shard; read before, as nobody can read it after."""
        self._listener.on_progress("truncate", 0, 0)
        self.check = Check(self._load.accounts)
        async with self._load.held():
            self.truncations = list(
                await asyncio.gather(*(truncate_half(client, self._read) for client in clients))
            )
        freed = sum(each.bytes_before - each.bytes_after for each in self.truncations)
        self._tell(f"about half of each shard is truncated: {freed:,} bytes are freed")

    async def lose_store(self) -> int:
        """Kill a store for good, and let HAKeeper repair its shards on another one."""
        keeper = self._view().shards[0].leader
        victim = next(store for store in FIRST if store != keeper)
        self._listener.on_progress(f"store {victim} is lost", 0, 0)
        began = time.perf_counter()
        acks = [asyncio.create_task(self._load.next_ack_ms(shard)) for shard in self._shards]
        await self._processes.kill(victim)
        self._tell(f"store {victim} is killed with -9, and does not come back")
        self.loss_pause_ms = max(await asyncio.gather(*acks))
        self._tell(f"every shard acks again, {self.loss_pause_ms:,.0f} ms after the kill at most")
        await self._watch.until(
            lambda view: not _is_live(view, victim), "HAKeeper misses the store", wait_s=_WAIT_S
        )
        self.detection_ms = _ms_since(began)
        await asyncio.sleep(self._plan.seconds)
        return victim

    async def repair(self, lost: int) -> None:
        began = time.perf_counter()
        await self._processes.start(LATER, joins=True)
        self._tell(f"store {LATER} is started with --join")

        def is_repaired(view: ClusterView) -> bool:
            whole = sum(
                len(shard.voters) == len(FIRST) and lost not in shard.voters and not shard.learners
                for shard in view.shards
            )
            self._listener.on_progress("repair", whole, len(view.shards))
            return whole == len(view.shards)

        view = await self._watch.until(is_repaired, "all shards are repaired", wait_s=_WAIT_S)
        self.repair_ms = _ms_since(began)
        self._tell(f"all shards have three living voters again, {self.repair_ms:,.0f} ms later")
        self._listener.on_view(view)
        await asyncio.sleep(self._plan.seconds)

    async def kill_leader(self) -> int:
        """Kill the store that leads the most shards, and take the time."""
        self._listener.on_progress("a leader is killed", 0, 0)
        led: dict[int, list[int]] = {}
        for shard in self._view().shards:
            if is_log(shard.shard):
                led.setdefault(shard.leader, []).append(shard.shard)
        leader = max(led, key=lambda store: len(led[store]))
        shards = led[leader]
        acks = [asyncio.create_task(self._load.next_ack_ms(shard)) for shard in shards]
        await self._processes.kill(leader)
        self._tell(f"store {leader}, which leads {_listed(shards)}, is killed with -9")
        times = await asyncio.gather(*acks)
        self.failover_ms = dict(zip(shards, times, strict=True))
        self._tell(f"others lead and ack again, {max(times):,.0f} ms after the kill at most")
        await asyncio.sleep(self._plan.seconds)
        return leader

    async def restart(self, store: int) -> None:
        self._listener.on_progress(f"store {store} comes back", 0, 0)
        began = time.perf_counter()
        await self._processes.start(store)

        def is_back(view: ClusterView) -> bool:
            return _is_live(view, store) and all(
                shard.leader == store or is_caught_up(shard, store)
                for shard in view.shards
                if store in shard.voters
            )

        view = await self._watch.until(is_back, f"store {store} has caught up", wait_s=_WAIT_S)
        self.catch_up_ms = _ms_since(began)
        self._tell(f"store {store} is back, and caught up {self.catch_up_ms:,.0f} ms later")
        self._listener.on_view(view)
        await asyncio.sleep(self._plan.seconds)
        self.under_faults = self._load.rates()

    async def read_back(self, clients: Sequence[AsyncLogClient]) -> None:
        self._tell("the clients stop, and all that is left is read back")
        await asyncio.gather(*(self._read(client) for client in clients))

    # Reading

    async def _read(self, client: AsyncLogClient, *, until: int | None = None) -> None:
        """Check what was not read yet, up to and with an LSN or to the end."""
        shard = client.config.shard
        next_lsn = self._next_lsns.get(shard, 1)
        while until is None or next_lsn <= until:
            records, after = await client.read(next_lsn)
            if after == next_lsn:
                break
            if until is not None:
                records = [record for record in records if record.lsn <= until]
                after = min(after, until + 1)
            self.check.take(records)
            next_lsn = after
            self._listener.on_progress("read back", self.check.found, self._load.acked)
        self._next_lsns[shard] = next_lsn

    def _view(self) -> ClusterView:
        assert self._watch.view is not None
        return self._watch.view


def _is_live(view: ClusterView, number: int) -> bool:
    return any(store.store == number and store.is_live for store in view.stores)


def _listed(shards: Sequence[int]) -> str:
    return f"shard{'s' if len(shards) > 1 else ''} {', '.join(map(str, shards))}"


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


async def run(folder: str, plan: Plan, listener: Listener) -> Outcome:
    """Play the whole story."""
    load = Load(batch=_BATCH, on_progress=listener.on_load)
    story = Story(listener.on_step, lambda: load.acked)
    with real_environment() as environment:
        async with (
            StoreProcesses(
                folder, ("logservice", "start"), plan.settings(), first=FIRST, later=(LATER,)
            ) as processes,
            _watching(environment, processes, story.tell) as watch,
        ):
            demo = _Demo(processes, watch, load, story, plan, listener)
            await demo.bootstrap()
            async with _connected(environment, processes, plan.shards) as clients:
                await _play(demo, load, clients)
            elapsed_s = story.elapsed_s
            statuses = await processes.end()
    return Outcome(
        steps=story.steps,
        seconds=elapsed_s,
        settings=plan.settings(),
        bootstrap_ms=demo.bootstrap_ms,
        full_speed=demo.full_speed,
        under_faults=demo.under_faults,
        truncations=demo.truncations,
        loss_pause_ms=demo.loss_pause_ms,
        detection_ms=demo.detection_ms,
        repair_ms=demo.repair_ms,
        failover_ms=demo.failover_ms,
        catch_up_ms=demo.catch_up_ms,
        longest_pause_ms=load.longest_pause_ms,
        records_acked=load.acked,
        records_unknown=load.unknown,
        exit_statuses=statuses,
        verdict=demo.check.verdict(),
    )


async def _play(demo: _Demo, load: Load, clients: Sequence[AsyncLogClient]) -> None:
    one_of_each_shard = clients[::CLIENTS_PER_SHARD]
    async with load.running(clients):
        await demo.append()
        await demo.truncate(one_of_each_shard)
        lost = await demo.lose_store()
        await demo.repair(lost)
        killed = await demo.kill_leader()
        await demo.restart(killed)
    await demo.read_back(one_of_each_shard)


@asynccontextmanager
async def _watching(
    environment: Environment, processes: StoreProcesses, on_change: Callable[[str], None]
) -> AsyncIterator[KeeperWatch]:
    stores = Stores(environment, operator_network(processes.client_settings()), processes.addresses)
    keeper = KeeperClient(stores)
    watch = KeeperWatch(keeper, on_change)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close()
        await stores.close()


@asynccontextmanager
async def _connected(
    environment: Environment, processes: StoreProcesses, shards: int
) -> AsyncIterator[list[AsyncLogClient]]:
    """Clients with connections of their own, those of a shard side by side."""
    network = client_network(processes.client_settings())
    addresses = [processes.addresses[store] for store in FIRST]
    async with AsyncExitStack() as stack:
        clients = []
        for shard in range(1, shards + 1):
            for _ in range(CLIENTS_PER_SHARD):
                client = await AsyncLogClient.connect(
                    environment, network, addresses, shard=shard, timeout_ms=_TIMEOUT_MS
                )
                clients.append(await stack.enter_async_context(client))
        yield clients
