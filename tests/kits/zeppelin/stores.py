"""A node's storage for tests: on RocksDB and the machine's disk, or all of it simulated."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.disk.rocksdb import RocksFolders
from raftwood.disk.segment_log import LogSettings
from raftwood.testing import Simulation, simulate
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.engine import (
    DATA_START,
    ENDINGS_END,
    ENDINGS_START,
    LANDMARKS_END,
    LANDMARKS_START,
    PartitionEngine,
    ending,
    expires_of,
    landmark,
)
from raftwood.zeppelin.node.engine_folders import Engines
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import WRITE_BYTES, BinlogPosition, BinlogRecord, KeyWrite
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.zeppelin.engines import FileEngines

PARTITION = PartitionId(7, 3)
LOG = LogSettings(segment_bytes=1 << 20)
SETTINGS = StoreSettings()


class Place:
    """Where a node's folder is; it can be opened again and again."""

    def __init__(self, environment: Environment, engines: Engines, folder: str) -> None:
        self.environment = environment
        self.engines = engines
        self.folder = folder

    async def open(self, settings: StoreSettings = SETTINGS) -> NodeStore:
        return await NodeStore.open(
            self.environment,
            self.folder,
            self.engines,
            cluster="tests",
            settings=settings,
            log_settings=LOG,
        )

    async def open_one(
        self, settings: StoreSettings = SETTINGS
    ) -> tuple[NodeStore, StoredPartition]:
        """With one partition, which is made where it is missing."""
        node = await self.open(settings)
        if PARTITION not in node.held():
            await node.hold({PARTITION: "t"}, epoch=7)
        return node, await node.partition(PARTITION)


Scenario = Callable[[Place], Coroutine[Any, Any, None]]


def run_on_rocksdb(scenario: Scenario, folder: Path) -> None:
    engines = RocksFolders(f"{folder}/engines", cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    with real_environment() as environment:
        asyncio.run(scenario(Place(environment, engines, str(folder))))


def run_simulated(scenario: Scenario, seed: int = 1) -> None:
    async def outside(simulation: Simulation) -> None:
        environment = simulation.environment
        engines = FileEngines(environment.files, simulation.loop.random_of("engines"))
        await scenario(Place(environment, engines, "/data/node"))

    simulate(seed, outside)


def put(
    store: StoredPartition, key: bytes, data: bytes | None, expires_ms: int = 0
) -> BinlogRecord:
    """Commit one write."""
    return commit(store, KeyWrite(key, data, expires_ms))


def commit(
    store: StoredPartition,
    *writes: KeyWrite,
    epoch: int | None = None,
    flushes: bool = False,
    origin: tuple[bytes, int] | None = None,
) -> BinlogRecord:
    record = BinlogRecord(
        store.epoch or 1 if epoch is None else epoch,
        store.last_sequence + 1,
        writes,
        flushes,
        origin,
    )
    store.commit(record)
    return record


def write_one(store: StoredPartition, write: KeyWrite, *, epoch: int = 1) -> int:
    """As a master does: part of the record that the loop's turn ends with."""
    size = len(write.key) + len(write.data or b"") + WRITE_BYTES
    return store.write({write.key: write}, size=size, epoch=epoch)


def contents(store: StoredPartition, now_ms: int = 1) -> dict[bytes, bytes]:
    return {key: value.data for key, value in store.scan(after=None, now_ms=now_ms)}


def position(store: StoredPartition) -> BinlogPosition:
    return BinlogPosition(store.epoch, store.last_sequence)


def check_kept_up(engine: PartitionEngine) -> None:
    """Whether the number of keys, their endings and the landmarks are those of the keys that stand
    before the place up to which was counted.
    """
    kv, state = engine.kv, engine.state
    pairs = dict(kv.scan(DATA_START, state.counted_to or DATA_START))
    assert state.keys == len(pairs), f"{state.keys} keys are told, and there are {len(pairs)}"
    if not state.counted_to:
        return
    endings = {ending(ends, place) for place, each in pairs.items() if (ends := expires_of(each))}
    found = {key for key, _ in kv.scan(ENDINGS_START, ENDINGS_END)}
    assert found == endings, f"endings that are missing or wrong: {found ^ endings}"
    landmarks = {mark for place in pairs if (mark := landmark(place)) is not None}
    found = {key for key, _ in kv.scan(LANDMARKS_START, LANDMARKS_END)}
    assert found == landmarks, f"landmarks that are missing or wrong: {found ^ landmarks}"
    first_ms = min((ends for each in pairs.values() if (ends := expires_of(each))), default=1 << 63)
    assert engine.next_ending_ms <= first_ms
