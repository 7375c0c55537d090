"""Streams under fire: what was acked is read back once, in the order of its key.

Shards are split and merged, a gateway and a store are killed. Stores and gateways are real
processes; the producers are in this one. A record says its key, the how-manieth of that key it is,
and carries a digest of both. So a reader can tell what is missing, there twice, out of order, or
nobody's.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.delivery.deliveries import Delivery
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, Delivered
from raftwood.loghub.model import AccessKey, AccessRole, ShardStatus
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.server.metadata import Metadata
from raftwood.loghub.wire import ShardDetail
from raftwood.server.child_processes import free_addresses
from raftwood.server.cluster_client import connected_cluster
from raftwood_demos.logservice import FAST_SETTINGS
from raftwood_demos.store_processes import StoreProcesses, store_name
from raftwood_demos.story import Story, StoryStep

_DIGESTS: Final = 5
_SENT, _ACKED, _SEEN = 0, 1, 2


def contents_of(key: str, number: int) -> dict[str, str]:
    """About 100 bytes."""
    digest = xxh3_64_hexdigest(f"{key} {number}".encode())
    return {"key": key, "number": str(number), "digest": digest * _DIGESTS}


class StreamVerdict(msgspec.Struct, frozen=True):
    """What reading it all back found."""

    found: int
    """Records of the producers, also such as were never acked."""
    acked_found: int
    missing: int
    """Acked, and not there."""
    twice: int
    disordered: int
    """Before an earlier one of the same key."""
    wrong: int
    """Nobody sent that."""

    @property
    def held(self) -> bool:
        return not (self.missing or self.twice or self.disordered or self.wrong)


class _Key:
    def __init__(self) -> None:
        self.states = bytearray()
        """By number, bits: acked, seen."""
        self.last_seen = -1


class StreamAccount:
    """Of all producers; a key belongs to one of them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = {key: _Key() for key in keys}
        self.found = self._twice = self._disordered = self._wrong = 0

    def next_number(self, key: str) -> int:
        """Of the record to be sent next."""
        states = self._keys[key].states
        states.append(_SENT)
        return len(states) - 1

    def ack(self, key: str, number: int) -> None:
        self._keys[key].states[number] |= _ACKED

    def see(self, contents: Mapping[str, str | bytes]) -> None:
        """A reader found this."""
        key, number = _text(contents.get("key")), _text(contents.get("number"))
        known = self._keys.get(key)
        place = int(number) if number.isascii() and number.isdecimal() else -1
        if known is None or not 0 <= place < len(known.states):
            self._wrong += 1
            return
        if _text(contents.get("digest")) != contents_of(key, place)["digest"]:
            self._wrong += 1
            return
        self.found += 1
        if known.states[place] & _SEEN:
            self._twice += 1
            return
        known.states[place] |= _SEEN
        if place < known.last_seen:
            self._disordered += 1
        known.last_seen = place

    def verdict(self) -> StreamVerdict:
        missing = sum(each.states.count(_ACKED) for each in self._keys.values())
        acked_found = sum(each.states.count(_ACKED | _SEEN) for each in self._keys.values())
        return StreamVerdict(
            self.found, acked_found, missing, self._twice, self._disordered, self._wrong
        )


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


_REPORT_S: Final = 0.2
_GROUPS_WAITING: Final = 4


class StreamRates(msgspec.Struct, frozen=True):
    """How sending went during a part of the story."""

    records: int
    records_per_second: float


class StreamLoad:
    """A producer for each group of keys; `pause_s` is what each waits after a group of records."""

    def __init__(
        self,
        account: StreamAccount,
        keys: Sequence[Sequence[str]],
        *,
        group: int,
        on_progress: Callable[["StreamLoad"], None],
    ) -> None:
        self._account = account
        self._keys = keys
        self.group = group
        self.pause_s = 0.0
        self._on_progress = on_progress
        self.acked = self.unknown = 0
        self._is_over = False
        self._last_ack: float | None = None
        self.longest_pause_ms = 0.0
        """Without an ack of any shard."""
        self.begin_part()

    def begin_part(self) -> None:
        """Let `rates` tell of what comes from now on."""
        self._part_began, self._part_acked = time.perf_counter(), self.acked

    def rates(self) -> StreamRates:
        records = self.acked - self._part_acked
        elapsed = max(0.001, time.perf_counter() - self._part_began)
        return StreamRates(records, records / elapsed)

    @asynccontextmanager
    async def running(self, producers: Sequence[AsyncProducer]) -> AsyncIterator[None]:
        """Send during the block; at its end, what is under way is waited for."""
        tasks = [
            asyncio.create_task(self._send_all(producer, keys))
            for producer, keys in zip(producers, self._keys, strict=True)
        ]
        tasks.append(asyncio.create_task(self._report()))
        try:
            yield
            self._is_over = True
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self) -> None:
        while not self._is_over:
            await asyncio.sleep(_REPORT_S)
            self._on_progress(self)

    async def _send_all(self, producer: AsyncProducer, keys: Sequence[str]) -> None:
        account, turn = self._account, 0
        waiting: deque[list[tuple[str, int, Delivery[Delivered]]]] = deque()
        while not self._is_over:
            sent = []
            for _ in range(self.group):
                turn += 1
                key = keys[turn % len(keys)]
                number = account.next_number(key)
                sent.append((key, number, await producer.send(contents_of(key, number), key=key)))
            waiting.append(sent)
            if len(waiting) >= _GROUPS_WAITING or self.pause_s:
                await self._settle(waiting.popleft())
            await asyncio.sleep(self.pause_s)
        for sent in waiting:
            await self._settle(sent)

    async def _settle(self, sent: Sequence[tuple[str, int, Delivery[Delivered]]]) -> None:
        for key, number, delivery in sent:
            try:
                await delivery
            except RaftwoodError:
                self.unknown += 1
            else:
                self._account.ack(key, number)
                self.acked += 1
        now = time.perf_counter()
        if self._last_ack is not None:
            self.longest_pause_ms = max(self.longest_pause_ms, (now - self._last_ack) * 1000)
        self._last_ack = now

    async def probe(self, producer: AsyncProducer, keys: Sequence[str]) -> float:
        """Send a record of each key from now on; milliseconds until all are acked."""
        began = time.perf_counter()
        sent = []
        for key in keys:
            number = self._account.next_number(key)
            sent.append((key, number, await producer.send(contents_of(key, number), key=key)))
        await self._settle(sent)
        return (time.perf_counter() - began) * 1000


STORES: Final = (1, 2, 3)
GATEWAYS: Final = (1, 2)
PROJECT, LOGSTORE = "demo", "events"
_KEYS_PER_PRODUCER: Final = 64
_PROBE_KEYS: Final = tuple(f"probe-{number}" for number in range(64))
"""So many that each shard gets some."""
_GROUP: Final = 500
_CALM_GROUP: Final = 50
_CALM_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.05


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is played."""

    shards: int
    producers: int
    records: int
    """Sent as fast as it goes, before anything happens."""
    seconds: float
    """Each part after that lasts so long at the least."""

    def settings(self) -> dict[str, int]:
        return FAST_SETTINGS | {"hakeeper.log_shards": 0}


class StreamOutcome(msgspec.Struct, frozen=True):
    """All steps, and what the last look found."""

    steps: list[StoryStep]
    seconds: float
    start_ms: float
    """From the start of the first process until a logstore can be written."""
    full_speed: StreamRates
    under_faults: StreamRates
    split_ms: float
    merge_ms: float
    gateway_killed_ms: float
    """A gateway is killed → a record sent after that to every shard is acked."""
    store_killed_ms: float
    read_records_per_second: float
    longest_pause_ms: float
    records_acked: int
    records_unknown: int
    shards: list[ShardDetail]
    exit_statuses: dict[str, int]
    verdict: StreamVerdict

    @property
    def held(self) -> bool:
        is_whole = self.verdict.held and self.verdict.acked_found == self.records_acked > 0
        return is_whole and not any(self.exit_statuses.values())


class StreamListener(msgspec.Struct, frozen=True):
    """Who hears what while it happens."""

    on_step: Callable[[StoryStep], None]
    on_progress: Callable[[str, int, int], None]
    """A part's name, how much of it is done, and of how much."""
    on_load: Callable[[StreamLoad], None]
    on_shards: Callable[[list[ShardDetail]], None]


class _Demo:
    def __init__(
        self,
        processes: StoreProcesses,
        load: StreamLoad,
        account: StreamAccount,
        story: Story,
        plan: StreamPlan,
        listener: StreamListener,
    ) -> None:
        self._processes = processes
        self._load = load
        self._account = account
        self._tell = story.tell
        self._plan = plan
        self._listener = listener
        self.gateways = dict(zip(GATEWAYS, free_addresses(len(GATEWAYS)), strict=True))
        self.full_speed = self.under_faults = load.rates()
        self.start_ms = self.split_ms = self.merge_ms = 0.0
        self.gateway_killed_ms = self.store_killed_ms = self.read_rate = 0.0
        self.shards: list[ShardDetail] = []

    async def start(self, environment: Environment) -> AccessKey:
        self._listener.on_progress("all processes start", 0, 0)
        await asyncio.gather(*(self._processes.start_store(store) for store in STORES))
        self._tell("three stores serve")
        await asyncio.gather(*(self.start_gateway(number) for number in GATEWAYS))
        self._tell("two gateways serve")
        settings = self._processes.client_settings()
        async with connected_cluster(environment, settings, None) as (store, _):
            metadata = Metadata(store)
            await metadata.start()
            key = await AccessControl(environment, metadata).create({"*": AccessRole.ADMIN})
            await metadata.close()
        self._tell(f"access key {key.id} is made")
        return key

    async def start_gateway(self, number: int) -> None:
        await self._processes.start(
            f"gateway-{number}",
            [
                "gateway",
                "start",
                "--config",
                self._processes.config_file,
                f"--set=gateway.listen={self.gateways[number]}",
                "--set=gateway.http_listen=",
            ],
        )

    async def make_stream(self, client: AsyncLogHubClient, began: float) -> None:
        self._listener.on_progress("a logstore is made", 0, 0)
        await client.create_project(PROJECT, description="what the demo sends")
        await client.create_logstore(PROJECT, LOGSTORE, shard_count=self._plan.shards)
        self.start_ms = _ms_since(began)
        self._tell(f"logstore {LOGSTORE} with {self._plan.shards} shards can be written")

    async def send(self) -> None:
        load, records = self._load, self._plan.records
        load.begin_part()
        while load.acked < records:
            self._listener.on_progress("send", load.acked, records)
            await asyncio.sleep(_LOOK_S)
        self.full_speed = rates = load.rates()
        self._tell(f"{rates.records:,} records acked: {rates.records_per_second:,.0f} a second")
        load.group, load.pause_s = _CALM_GROUP, _CALM_PAUSE_S
        load.begin_part()

    async def split(self, client: AsyncLogHubClient) -> None:
        self._listener.on_progress("a shard is split", 0, 0)
        began = time.perf_counter()
        affected = await client.split_shard(PROJECT, LOGSTORE, shard=0)
        self.split_ms = _ms_since(began)
        children = " and ".join(str(each.id) for each in affected if each.id)
        self._tell(f"shard 0 is split into {children} under way, {self.split_ms:,.0f} ms")
        await self.show(client)
        await asyncio.sleep(self._plan.seconds)

    async def kill_gateway(self, probe: AsyncProducer) -> None:
        self._listener.on_progress("a gateway is killed", 0, 0)
        await self._processes.kill("gateway-1")
        self._tell("gateway 1 is killed with -9")
        self.gateway_killed_ms = await self._load.probe(probe, _PROBE_KEYS)
        self._tell(f"every shard acks what is sent after that, {self.gateway_killed_ms:,.0f} ms")
        await asyncio.sleep(self._plan.seconds)

    async def kill_store(self, probe: AsyncProducer) -> None:
        self._listener.on_progress("a store is killed", 0, 0)
        await self._processes.kill(store_name(STORES[0]))
        self._tell(f"store {STORES[0]} is killed with -9")
        self.store_killed_ms = await self._load.probe(probe, _PROBE_KEYS)
        self._tell(f"every shard acks what is sent after that, {self.store_killed_ms:,.0f} ms")
        await asyncio.sleep(self._plan.seconds)

    async def restart(self) -> None:
        self._listener.on_progress("both come back", 0, 0)
        await self._processes.start_store(STORES[0])
        await self.start_gateway(GATEWAYS[0])
        self._tell(f"store {STORES[0]} and gateway {GATEWAYS[0]} are back")
        await asyncio.sleep(self._plan.seconds)

    async def merge(self, client: AsyncLogHubClient) -> None:
        self._listener.on_progress("shards are merged", 0, 0)
        writable = [
            each
            for each in await client.shards(PROJECT, LOGSTORE)
            if each.status is ShardStatus.READWRITE
        ]
        first = min(writable, key=lambda each: each.begin)
        began = time.perf_counter()
        affected = await client.merge_shard(PROJECT, LOGSTORE, shard=first.id)
        self.merge_ms = _ms_since(began)
        self._tell(
            f"shards {affected[0].id} and {affected[1].id} are merged into {affected[-1].id} under "
            f"way, {self.merge_ms:,.0f} ms"
        )
        await asyncio.sleep(self._plan.seconds)
        self.under_faults = self._load.rates()

    async def show(self, client: AsyncLogHubClient) -> None:
        self.shards = await client.describe(PROJECT, LOGSTORE)
        self._listener.on_shards(self.shards)

    async def read_back(self, client: AsyncLogHubClient) -> None:
        self._tell("the producers stop, and all is read back")
        began = time.perf_counter()
        async with client.reader(PROJECT, LOGSTORE) as reader:
            async for record in reader:
                self._account.see(record.contents)
                if self._account.found % 5000 == 0:
                    self._listener.on_progress("read back", self._account.found, self._load.acked)
        self.read_rate = self._account.found / max(0.001, time.perf_counter() - began)


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


async def run(folder: str, plan: StreamPlan, listener: StreamListener) -> StreamOutcome:
    """Play the whole story."""
    keys = [
        [f"user-{producer}-{number}" for number in range(_KEYS_PER_PRODUCER)]
        for producer in range(plan.producers)
    ]
    account = StreamAccount([*(key for each in keys for key in each), *_PROBE_KEYS])
    load = StreamLoad(account, keys, group=_GROUP, on_progress=listener.on_load)
    story = Story(listener.on_step, lambda: load.acked)
    with real_environment() as environment:
        async with StoreProcesses(
            folder, ("logservice", "start"), plan.settings(), first=STORES, later=()
        ) as processes:
            demo = _Demo(processes, load, account, story, plan, listener)
            began = time.perf_counter()
            key = await demo.start(environment)
            async with await AsyncLogHubClient.connect(
                environment,
                list(demo.gateways.values()),
                access_key=key.id,
                access_secret=key.secret,
            ) as client:
                await demo.make_stream(client, began)
                await _play(demo, load, client, plan)
            elapsed_s = story.elapsed_s
            statuses = await processes.end()
    return StreamOutcome(
        steps=story.steps,
        seconds=elapsed_s,
        start_ms=demo.start_ms,
        full_speed=demo.full_speed,
        under_faults=demo.under_faults,
        split_ms=demo.split_ms,
        merge_ms=demo.merge_ms,
        gateway_killed_ms=demo.gateway_killed_ms,
        store_killed_ms=demo.store_killed_ms,
        read_records_per_second=demo.read_rate,
        longest_pause_ms=load.longest_pause_ms,
        records_acked=load.acked,
        records_unknown=load.unknown,
        shards=demo.shards,
        exit_statuses=statuses,
        verdict=account.verdict(),
    )


async def _play(demo: _Demo, load: StreamLoad, client: AsyncLogHubClient, plan: StreamPlan) -> None:
    async with _producers(client, plan.producers + 1) as (probe, *producers):
        async with load.running(producers):
            await demo.send()
            await demo.split(client)
            await demo.kill_gateway(probe)
            await demo.kill_store(probe)
            await demo.restart()
            await demo.merge(client)
        await demo.show(client)
    await demo.read_back(client)


@asynccontextmanager
async def _producers(
    client: AsyncLogHubClient, count: int
) -> AsyncIterator[Sequence[AsyncProducer]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(client.producer(PROJECT, LOGSTORE))
            for _ in range(count)
        ]
