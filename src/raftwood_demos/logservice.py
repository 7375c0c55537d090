"""The log service under fire: it sets itself up, loses stores, repairs itself, and loses no record.

Stores are real processes. Clients append batches to all shards; the parent truncates, kills stores
and starts another one, and HAKeeper does the rest. What is about to be truncated is read before,
everything else at the end: each acked record has to be found, once, where it was acked.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Protocol

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.hakeeper.commands import ClusterView, KeeperShardView
from raftwood.logservice.hakeeper.messages import HAKEEPER_SHARD, is_log
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.logservice.settings import HaKeeperSettings
from raftwood.logservice.wire import ShardInfo
from raftwood.net.stores import Stores
from raftwood.server.cluster import client_network, operator_network
from raftwood_demos.log_load import LogCheck, LogLoad, LogRates, LogVerdict
from raftwood_demos.store_processes import StoreProcesses, store_name
from raftwood_demos.story import Story, StoryStep

_LOOK_S = 0.05
CAUGHT_UP_ENTRIES = HaKeeperSettings().lag_entries
"""So close behind the leader a learner may get a vote."""


class KeeperWatch:
    """Looks again and again; `on_change` hears each change in words."""

    def __init__(self, keeper: KeeperClient, on_change: Callable[[str], None]) -> None:
        self._keeper = keeper
        self._on_change = on_change
        self.view: ClusterView | None = None
        self._is_new = asyncio.Event()

    async def run(self) -> None:
        while True:
            # Without a leader of HAKeeper there is no view; the next look may have one.
            with suppress(RaftwoodError):
                after = await self._keeper.describe()
                for text in changes(self.view, after):
                    self._on_change(text)
                self.view = after
                self._is_new.set()
            await asyncio.sleep(_LOOK_S)

    async def until(
        self, is_met: Callable[[ClusterView], bool], what: str, *, wait_s: float
    ) -> ClusterView:
        """The first view that meets a condition."""
        try:
            async with asyncio.timeout(wait_s):
                while self.view is None or not is_met(self.view):
                    self._is_new.clear()
                    await self._is_new.wait()
                return self.view
        except TimeoutError:
            seen = "nothing" if self.view is None else summary(self.view)
            raise DeadlineExceeded(
                f"after {wait_s:g} s it is still not so that {what}; HAKeeper sees {seen}"
            ) from None


def name_of(shard: KeeperShardView) -> str:
    if shard.shard == HAKEEPER_SHARD:
        return "HAKeeper"
    return f"shard {shard.shard}" if is_log(shard.shard) else f"the {shard.name}"


def summary(view: ClusterView) -> str:
    """All in a line, for when something went wrong."""
    live = [store.store for store in view.stores if store.is_live]
    shards = [
        f"{name_of(shard)} led by {shard.leader} with voters {list(shard.voters)}, learners "
        f"{list(shard.learners)}, lagging {shard.lagging}"
        for shard in view.shards
    ]
    orders = [f"{order.kind} of shard {order.shard}" for order in view.orders]
    alarms = [alarm.text for alarm in view.alarms]
    return f"live stores {live}; {'; '.join(shards)}; orders {orders}; alarms {alarms}"


def changes(before: ClusterView | None, after: ClusterView) -> list[str]:
    """In words; leaders that come and go are left out, they are told by who made them go."""
    told = []
    if before is None or before.phase is not after.phase:
        told.append(f"HAKeeper: {after.phase}" + (f" ({after.reason})" if after.reason else ""))
    if before is None:
        return told
    stores = {store.store: store for store in before.stores}
    for store in after.stores:
        known = stores.get(store.store)
        if known is None:
            told.append(f"HAKeeper hears of store {store.store}")
        elif known.is_live != store.is_live:
            state = "lives again" if store.is_live else "is taken for lost"
            told.append(f"HAKeeper: store {store.store} {state}")
    shards = {shard.shard: shard for shard in before.shards}
    for shard in after.shards:
        if shard.shard in shards:
            told += _member_changes(shards[shard.shard], shard)
    told += [
        f"HAKeeper: {each.kind} of shard {each.shard} by {each.target} failed: {each.error}"
        for each in after.failures
        if each not in before.failures
    ]
    return told


def _member_changes(before: KeeperShardView, after: KeeperShardView) -> list[str]:
    if not before.voters:
        return []
    name, told = name_of(after), []
    for store in after.learners:
        if store not in before.learners:
            told.append(f"{name}: store {store} is a learner")
        if is_caught_up(after, store) and not is_caught_up(before, store):
            lag = after.lagging[store]
            told.append(f"{name}: store {store} has caught up, {lag:,} entries behind the leader")
    gained = [store for store in after.voters if store not in before.voters]
    lost = [store for store in before.voters if store not in (*after.voters, *after.learners)]
    parts = [f"store {store} votes" for store in gained] + [f"store {store} left" for store in lost]
    if parts:
        voters = ", ".join(map(str, after.voters))
        told.append(f"{name}: {', '.join(parts)}; voters are {voters}")
    return told


def is_caught_up(shard: KeeperShardView, store: int) -> bool:
    """Whether the leader says so of a member."""
    return shard.lagging.get(store, CAUGHT_UP_ENTRIES + 1) <= CAUGHT_UP_ENTRIES


FAST_SETTINGS = {
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "hakeeper.store_down_ticks": 30,
    "hakeeper.order_ticks": 100,
    "hakeeper.bootstrap_grace_ticks": 200,
    "hakeeper.bootstrap_ticks": 600,
    "hakeeper.leaderless_ticks": 100,
    "logservice.truncation_ms": 250,
}
"""With the defaults a store is taken for lost after 30 s, and truncated logs are cut every 5 s."""


class LogServicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is played."""

    shards: int
    records: int
    """Appended as fast as it goes, before anything is killed."""
    seconds: float
    """Each part after that lasts so long at the least."""

    def settings(self) -> dict[str, int]:
        """Snapshots are spread over what is appended, so that there is one to cut the log at."""
        per_shard = self.records // self.shards
        return FAST_SETTINGS | {
            "hakeeper.log_shards": self.shards,
            "logservice.snapshot_entries": min(1_000, max(10, per_shard // 10)),
        }


class LogTruncation(msgspec.Struct, frozen=True):
    """What came of truncating a shard."""

    shard: int
    truncated_lsn: int
    first_lsn: int
    """The first that can be read after it, as the error of a reader says who wants earlier ones."""
    bytes_before: int
    bytes_after: int


class LogServiceOutcome(msgspec.Struct, frozen=True):
    """All steps, and what the last look found."""

    steps: list[StoryStep]
    seconds: float
    settings: dict[str, int]
    bootstrap_ms: float
    """From the start of the first process until all shards have leaders."""
    full_speed: LogRates
    under_faults: LogRates
    truncations: list[LogTruncation]
    loss_pause_ms: float
    """A store is killed → each shard acks again."""
    detection_ms: float
    """A store is killed → HAKeeper takes it for lost."""
    repair_ms: float
    """Another store joins → all shards have three voters that live."""
    failover_ms: dict[int, float]
    """By shard: its leader is killed → the next batch begun after that is acked."""
    catch_up_ms: float
    """The killed leader is started again → it has what the leaders have."""
    longest_pause_ms: float
    records_acked: int
    records_unknown: int
    exit_statuses: dict[str, int]
    """Of the stores that were told to end."""
    verdict: LogVerdict

    @property
    def held(self) -> bool:
        is_whole = self.verdict.held and self.verdict.acked_found == self.records_acked > 0
        is_cut = all(each.first_lsn == each.truncated_lsn + 1 for each in self.truncations)
        return is_whole and is_cut and not any(self.exit_statuses.values())


_TRUNCATION_WAIT_S: Final = 60.0
_TRUNCATION_LOOK_S: Final = 0.1


class ReadUntil(Protocol):
    """Reads all that was not read yet, up to and with an LSN."""

    def __call__(self, client: AsyncLogClient, /, *, until: int) -> Awaitable[None]: ...


async def truncate_half(
    client: AsyncLogClient, read: ReadUntil, begun: LogTruncation | None = None
) -> LogTruncation:
    """What is truncated is read before; `begun` is what another leader was told."""
    before = await _until(client, lambda info: bool(info.snapshots), "has no snapshot")
    half = before.latest_lsn // 2
    lsn = max((each for each in before.snapshots if each <= half), default=before.snapshots[0])
    # This leader may have freed already what the former one was told to.
    bytes_before = max(before.log_bytes, begun.bytes_before if begun else 0)
    if begun is None or lsn > begun.truncated_lsn:
        await read(client, until=lsn)
        await client.truncate(lsn)
    else:
        lsn = begun.truncated_lsn
    after = await _until(
        client,
        lambda info: info.log_bytes < bytes_before or info.leader != before.leader,
        "has freed nothing",
    )
    first = 0
    try:
        await client.read(lsn)
    except LsnTruncated as error:
        first = error.first
    truncation = LogTruncation(before.shard, lsn, first, bytes_before, after.log_bytes)
    if after.leader != before.leader:
        return await truncate_half(client, read, truncation)
    return truncation


async def _until(
    client: AsyncLogClient, is_met: Callable[[ShardInfo], bool], otherwise: str
) -> ShardInfo:
    """A shard's figures, once they are as they should be."""
    for _ in range(int(_TRUNCATION_WAIT_S / _TRUNCATION_LOOK_S)):
        info = await client.info()
        if is_met(info):
            return info
        await asyncio.sleep(_TRUNCATION_LOOK_S)
    raise DeadlineExceeded(f"shard {info.shard} {otherwise} after {_TRUNCATION_WAIT_S:g} s")


FIRST, LATER = (1, 2, 3), 4
CLIENTS_PER_SHARD = 2
_WAIT_S = 60.0
_TIMEOUT_MS = 30_000
_BATCH = 200
_CALM_BATCH = 50
_CALM_PAUSE_S = 0.04
"""While stores are killed: it is to be seen how long that takes, not how busy the machine is."""


class Listener(msgspec.Struct, frozen=True):
    """Who hears what while it happens."""

    on_step: Callable[[StoryStep], None]
    on_progress: Callable[[str, int, int], None]
    """A part's name, how much of it is done, and of how much."""
    on_load: Callable[[LogLoad], None]
    on_view: Callable[[ClusterView], None]
    """HAKeeper's view at the end of a part."""


class _Demo:
    def __init__(
        self,
        processes: StoreProcesses,
        watch: KeeperWatch,
        load: LogLoad,
        story: Story,
        plan: LogServicePlan,
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
        self.check = LogCheck(())
        self.full_speed = self.under_faults = load.rates()
        self.truncations: list[LogTruncation] = []
        self.failover_ms: dict[int, float] = {}
        self.bootstrap_ms = self.loss_pause_ms = self.detection_ms = 0.0
        self.repair_ms = self.catch_up_ms = 0.0

    # The parts

    async def bootstrap(self) -> None:
        began = time.perf_counter()
        self._listener.on_progress("three stores start", 0, 0)
        await asyncio.gather(*(self._processes.start_store(store) for store in FIRST))
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
        return view.phase is ClusterPhase.RUNNING and is_led and logs == self._plan.shards

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
        self.check = LogCheck(self._load.accounts)
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
        await self._processes.kill(store_name(victim))
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
        await self._processes.start_store(LATER, joins=True)
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
        await self._processes.kill(store_name(leader))
        self._tell(f"store {leader}, which leads {_listed(shards)}, is killed with -9")
        times = await asyncio.gather(*acks)
        self.failover_ms = dict(zip(shards, times, strict=True))
        self._tell(f"others lead and ack again, {max(times):,.0f} ms after the kill at most")
        await asyncio.sleep(self._plan.seconds)
        return leader

    async def restart(self, store: int) -> None:
        self._listener.on_progress(f"store {store} comes back", 0, 0)
        began = time.perf_counter()
        await self._processes.start_store(store)

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


async def run(folder: str, plan: LogServicePlan, listener: Listener) -> LogServiceOutcome:
    """Play the whole story."""
    load = LogLoad(batch=_BATCH, on_progress=listener.on_load)
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
    return LogServiceOutcome(
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


async def _play(demo: _Demo, load: LogLoad, clients: Sequence[AsyncLogClient]) -> None:
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
