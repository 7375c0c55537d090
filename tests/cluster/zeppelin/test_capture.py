"""A table's changes, captured and applied to another one, under kills and moves: both are equal."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, RaftwoodError
from raftwood.capture.events import decode_stamp
from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import run
from tests.kits.zeppelin.capturing import STREAMS, Streams, capturing
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes

SAFE = TableConfig(partitions=4, min_replicas=2)
FAST = TableConfig(partitions=4, replicas=2, min_replicas=1, ack="memory")
PATIENT = {"zeppelin_meta.down_ms": 15_000}
"""A slave that has not heard from its master for a while may still take its place."""
EQUAL_S_MAX = 120.0
KEYS = 300
Pairs = dict[bytes, tuple[bytes, int]]


@pytest.fixture(scope="module")
def places(module_folder: Path) -> Iterator[tuple[KvProcesses, Streams]]:
    with (
        kv_processes(module_folder, settings={**STREAMS, **PATIENT}, has_proxies=True) as cluster,
        capturing(cluster, module_folder) as streams,
    ):
        yield cluster, streams


def _addresses(cluster: KvProcesses) -> str:
    ports = (cluster.ports[node.name][0] for node in cluster.nodes.values())
    return ",".join(f"{cluster.host}:{port}" for port in ports)


class Writer:
    """Sets, lets end, and deletes keys, and now and then all of them."""

    def __init__(self, kv: AsyncKv, seed: int) -> None:
        self._kv = kv
        self._chance = random.Random(seed)
        self.count = 0
        self.is_writing = True

    async def run(self) -> None:
        chance = self._chance
        while self.is_writing:
            self.count += 1
            key = f"k{chance.randrange(KEYS)}"
            what = chance.random()
            try:
                if what < 0.1:
                    await self._kv.delete(key)
                elif what < 0.3:
                    await self._kv.set(key, str(self.count), px=chance.randrange(1, 10**7))
                elif what < 0.35:
                    pairs = [(f"k{each}", f"m{self.count}") for each in range(0, KEYS, 7)]
                    await self._kv.set_many(pairs)
                elif what < 0.351:
                    await self._kv.flush()
                elif what < 0.4:
                    await self._kv.set(b"\xff%d" % chance.randrange(9), b"\x00\xfe")
                else:
                    await self._kv.set(key, str(self.count))
            except RaftwoodError:
                pass  # nobody knows whether it was done: whatever it is, it is captured
            await asyncio.sleep(0.01)


async def _pairs(kv: AsyncKv, since_ms: int) -> Pairs:
    """All keys of a table with their values and ends; none that ended while it was asked."""
    found: Pairs = {}
    for place in await kv.partitions():
        async with await kv.checkpoint(place.number) as checkpoint:
            async for page in checkpoint.pages():
                ends = page.ends() or [0] * page.count
                for key, value, end in zip(page.keys(), page.values(), ends, strict=True):
                    if not 0 < end < since_ms:
                        found[key] = (value, end)
    return found


async def _wait_equal(one: AsyncKv, other: AsyncKv) -> Pairs:
    deadline = time.monotonic() + EQUAL_S_MAX
    while True:
        since_ms = int(time.time() * 1000) + 5_000
        pairs, copies = await _pairs(one, since_ms), await _pairs(other, since_ms)
        if pairs == copies:
            return pairs
        if time.monotonic() > deadline:
            differing = {
                key: (pairs.get(key), copies.get(key))
                for key in sorted({*pairs, *copies})
                if pairs.get(key) != copies.get(key)
            }
            raise AssertionError(f"{len(differing)} differ: {dict(list(differing.items())[:5])}")
        await asyncio.sleep(0.5)


def _check_once(streams: Streams, logstore: str) -> int:
    """Each change stands in the stream once, and those of a partition in order."""
    seen: set[tuple[str, ...]] = set()
    for batch in streams.batches(logstore):
        records = batch.records()
        stamp = decode_stamp(records[0].tags)
        assert stamp is not None
        for record in records:
            fields = {name: str(value) for name, value in record.contents.items()}
            if "cause" in fields or fields["op"] == "mark":
                continue
            place = (fields["epoch"], fields["sequence"], fields["index"])
            assert (str(stamp.partition), *place) not in seen
            seen.add((str(stamp.partition), *place))
    return len(seen)


def _migrate(cluster: KvProcesses, table: str) -> None:
    """The master of a partition goes to a node that has no replica of it."""

    async def order(meta: MetaClient) -> None:
        known = await meta.topology()
        partition = known.tables[table].partitions[1]
        target = next(node for node in known.nodes if node not in partition.replicas)
        assert partition.master is not None
        await meta.migrate(table, 1, partition.master, target)

    cluster.ask(order)


class Pair:
    """A table, and another one that its changes are applied to."""

    def __init__(self, cluster: KvProcesses, streams: Streams, config: TableConfig) -> None:
        self._cluster = cluster
        self.table = f"table{config.min_replicas}"
        copy = TableConfig(partitions=2, min_replicas=2)
        self.login = cluster.create_table(self.table, config)
        self.copy = cluster.create_table(f"copy{config.min_replicas}", copy)
        self.logstore = f"of-{self.table}"
        streams.create_logstore(self.logstore)
        self.capture = streams.capture(self.logstore, self.login)
        self.replay = streams.replay(self.logstore, self.copy, f"--group={self.copy.table}")
        self.second = streams.capture(self.logstore, self.login)

    async def connect(self, login: Login, environment: Environment) -> AsyncKv:
        return await AsyncKv.connect(
            _addresses(self._cluster),
            user=login.user,
            password=login.password,
            environment=environment,
        )


async def _suffer(
    cluster: KvProcesses, streams: Streams, safe: Pair, fast: Pair, kv: AsyncKv
) -> None:
    """Whatever can be killed is, while it is written to."""
    do = asyncio.to_thread
    for pair in (safe, fast):
        await do(pair.capture.start)
        await do(pair.replay.start)
    safe.capture.kill_now()
    await _lose_records(cluster, streams, fast, kv)
    await do(safe.capture.start)
    fast.replay.kill_now()
    await do(fast.replay.start)
    await do(_migrate, cluster, fast.table)
    # A second one of the same name takes over; the first cannot go on.
    await do(fast.second.start)
    assert await fast.capture.ended() != 0
    assert "another process captures" in fast.capture.log.read_text()
    assert "captured records were cut" in fast.capture.log.read_text()
    await do(cluster.ask, partial(_double, fast.table))
    await do(_wait_doubled, cluster, fast.table)


def _wait_captured(streams: Streams, logstore: str, key: str) -> None:
    deadline = time.monotonic() + EQUAL_S_MAX
    while not any(
        str(record.contents.get("key")) == key
        for batch in streams.batches(logstore)
        for record in batch.records()
    ):
        assert time.monotonic() < deadline, f"{key} is not captured"
        time.sleep(0.2)


async def _lose_records(cluster: KvProcesses, streams: Streams, pair: Pair, kv: AsyncKv) -> None:
    """A master has acked and told what its slaves have not got, and is killed."""
    do = asyncio.to_thread
    master = await do(cluster.master_of, pair.table, 0)
    slots = (await kv.binlogs.partitions()).partitions[0]
    keys = [key for key in map("lost{}".format, range(10**4)) if slot_of(key.encode()) < slots.stop]
    await do(cluster.cut_from_nodes, master)
    for key in keys[:20]:
        await kv.set(key, "of a master that is gone")
    await do(_wait_captured, streams, pair.logstore, keys[19])
    cluster.nodes[master].kill_now()
    await do(cluster.wait_served, pair.table)
    # What was kept back comes to whoever is master by now, and is not taken.
    await do(cluster.heal)
    await do(cluster.nodes[master].start)


async def _double(table: str, meta: MetaClient) -> None:
    """As soon as the move that was ordered before is over."""
    deadline = time.monotonic() + EQUAL_S_MAX
    while True:
        try:
            await meta.double_partitions(table)
        except Conflict:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        else:
            return


def _wait_doubled(cluster: KvProcesses, table: str) -> None:
    deadline = time.monotonic() + EQUAL_S_MAX
    while cluster.topology().tables[table].is_doubling:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_tables_and_what_was_replayed_of_them_are_equal(
    places: tuple[KvProcesses, Streams],
) -> None:
    cluster, streams = places
    safe, fast = pairs = [Pair(cluster, streams, config) for config in (SAFE, FAST)]

    async def main(environment: Environment) -> None:
        async with AsyncExitStack() as stack:
            both: list[tuple[AsyncKv, AsyncKv]] = []
            for pair in pairs:
                clients = [
                    await pair.connect(each, environment) for each in (pair.login, pair.copy)
                ]
                kv, copied = [await stack.enter_async_context(each) for each in clients]
                await kv.set_many([(f"k{number}", "first") for number in range(KEYS)])
                await copied.set("old", "of a table that was there before")
                both.append((kv, copied))
            writers = [Writer(kv, seed) for kv, _ in both for seed in range(2)]
            async with asyncio.TaskGroup() as tasks:
                for writer in writers:
                    tasks.create_task(writer.run())
                try:
                    await _suffer(cluster, streams, safe, fast, both[-1][0])
                finally:
                    for writer in writers:
                        writer.is_writing = False
            for kv, copied in both:
                assert await _wait_equal(kv, copied)

    with real_environment() as environment:
        run(main(environment))
    for pair in pairs:
        assert _check_once(streams, pair.logstore) > 500
