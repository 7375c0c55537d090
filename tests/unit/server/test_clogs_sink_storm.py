"""Shippers lose answers and forget where they sent, gateways hear late of what changes, and shards
are split and merged meanwhile: every batch is stored once, and a file's in order."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from msgspec.structs import replace
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import GatewayKit, values_of
from tests.unit.server.test_clogs_sink import SETTINGS, message

from raftwood.base.errors import Conflict, InvalidInput
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.frames import ClogsMessage
from raftwood.clogs.receiver_settings import parsed_routes
from raftwood.disk.segment_log import LogSettings
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.model import Logstore, ShardStatus
from raftwood.loghub.server import idempotent_puts
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.metadata import logstore_key
from raftwood.loghub.shards import lineage_of_key
from raftwood.metastore.file_store import FileMetaStore
from raftwood.server.receiver import Routes, StreamSink
from raftwood.testing import Simulation, simulate

SMALL = LogSettings(segment_bytes=256 << 10, cache_bytes_max=0)
BATCHES = 25
FILES = 6


class _Shipper:
    """Of one file: one batch under way, the same again until it is acknowledged."""

    def __init__(self, name: str, sinks: list[StreamSink], key: str, rng: random.Random) -> None:
        self.name = name
        self._sinks = sinks
        self._key = key
        self._random = rng
        self._place = ""
        self._copies: list[ClogsMessage] = []

    async def run(self) -> None:
        for sequence in range(1, BATCHES + 1):
            is_resumed = False
            while not await self._attempt(sequence, is_resumed=is_resumed):
                is_resumed = is_resumed or self._random.random() < 0.2  # a new life
            if self._random.random() < 0.3:
                await self._late_copy()

    async def _attempt(self, sequence: int, *, is_resumed: bool) -> bool:
        await asyncio.sleep(self._random.random() * 0.05)
        sink = self._random.choice(self._sinks)
        if not is_resumed and not self._place:
            self._place = await sink.locate(self._key, self.name)
        place = "" if is_resumed else self._place
        made = message(
            sequence,
            f"{self.name} {sequence}",
            name=self.name,
            place=place,
            is_resumed=is_resumed,
        )
        sent = replace(made, producer=self.name.encode().ljust(16))
        self._copies.append(sent)
        try:
            found = await sink.store(self._key, sent)
        except PlaceMoved:
            self._place = ""
            return False
        if self._random.random() < 0.3:
            return False  # the answer is lost
        self._place = found
        return True

    async def _late_copy(self) -> None:
        """One that was long under way arrives; nobody listens to the answer."""
        try:
            await self._random.choice(self._sinks).store(
                self._key, self._random.choice(self._copies)
            )
        except Conflict:
            return


async def change_shards(gateway: Gateway, late: Gateway, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.random() * 0.15)
        shards = await gateway.streams.shards("p", "s")
        writable = [each for each in shards if each.status is ShardStatus.READWRITE]
        before = late.metadata._copies.get(logstore_key("p", "s"))
        try:
            shard = rng.choice(writable).id
            if len(writable) > 4 or rng.random() < 0.3:
                await gateway.streams.merge("p", "s", shard)
            else:
                await gateway.streams.split("p", "s", shard)
        except (InvalidInput, Conflict):
            continue
        if before is not None and rng.random() < 0.5:
            late.metadata._copies[logstore_key("p", "s")] = before


async def values(gateway: Gateway) -> list[str]:
    """Parents before their children, as consumers read them."""
    found: list[str] = []
    streams = gateway.streams
    for shard in sorted(await streams.shards("p", "s"), key=lambda each: each.id):
        position: int = await streams.cursor("p", "s", shard.id, "begin")
        end = await streams.cursor("p", "s", shard.id, "end")
        while position < end:
            pulled = await streams.pull("p", "s", shard.id, position)
            for batch in pulled.batches:
                found += values_of(bytes(batch.data[HEAD_BYTES:]))
            position = pulled.next
    return found


def storm(seed: int) -> None:
    """In virtual time, so that it goes the same way each time."""

    async def scenario(simulation: Simulation) -> None:
        rng, environment = random.Random(seed), simulation.environment
        store = await FileMetaStore.open(environment, "/data/meta", settings=SMALL)
        kit = GatewayKit(environment, store, MemoryLogs())
        try:
            await _storm(kit, seed, rng)
        finally:
            for gateway in kit.gateways:
                await gateway.close()
            await store.close()

    simulate(seed, scenario)


async def _storm(kit: GatewayKit, seed: int, rng: random.Random) -> None:
    gateways = [await kit.gateway(), await kit.gateway()]
    await gateways[0].catalog.create_project("p")
    await gateways[0].catalog.create_logstore("p", "s", shard_count=1)
    key = (await kit.admin()).id
    await gateways[1].access.find(key)
    sinks = [StreamSink(each, Routes(parsed_routes(SETTINGS))) for each in gateways]
    shippers = [_Shipper(f"f{number}", sinks, key, rng) for number in range(FILES)]
    changing = asyncio.create_task(change_shards(gateways[0], gateways[1], rng))
    try:
        await asyncio.gather(*(each.run() for each in shippers))
    finally:
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
    found = await values(gateways[0])
    for each in shippers:
        own = [value for value in found if value.startswith(f"{each.name} ")]
        expected = [f"{each.name} {sequence}" for sequence in range(1, BATCHES + 1)]
        assert own == expected, f"seed {seed}: not once, or not in order"
    known = await gateways[0].catalog.logstore("p", "s")
    assert len(known.shards) > 5, f"seed {seed}: too little was split"


@pytest.mark.parametrize("seed", range(12))
def test_every_batch_is_stored_once_and_in_order(seed: int) -> None:
    storm(seed)


@contextmanager
def looks_at_the_present_shard_alone() -> Iterator[None]:
    """A batch that was stored before a split is not found."""

    def last(known: Logstore, key: str) -> list[object]:
        return list(lineage_of_key(known, key)[-1:])

    with mock.patch.object(idempotent_puts, "lineage_of_key", last):
        yield


@contextmanager
def stores_elsewhere_by_itself() -> Iterator[None]:
    """Where the place takes no more, a batch is put where the file goes now: a copy that comes late
    is stored again."""
    store = StreamSink._store_there

    async def eager(sink: StreamSink, key: str, sent: ClogsMessage, *rest: object) -> str:
        try:
            return await store(sink, key, sent, *rest)  # type: ignore[arg-type]
        except PlaceMoved:
            place = await sink.locate(key, sent.name)
            return await sink.store(key, replace(sent, place=place))

    with mock.patch.object(StreamSink, "_store_there", eager):
        yield


@pytest.mark.parametrize("mutant", [looks_at_the_present_shard_alone, stores_elsewhere_by_itself])
def test_a_planted_mistake_is_caught(mutant: object) -> None:
    assert callable(mutant)
    with mutant(), pytest.raises(AssertionError, match="not once"):
        for seed in range(20):
            storm(seed)
