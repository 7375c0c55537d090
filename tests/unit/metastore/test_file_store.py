"""The metastore in one folder: on real files, in simulation, and after crashes."""

import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tests.simulation.store_images import environment_over
from tests.unit.metastore.meta_suite import MetaSuite

from raftwood.base.environment import Environment
from raftwood.base.seams import Entry, MetaStore, RemoveKey, SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings
from raftwood.metastore.file_store import FileMetaStore
from raftwood.simulation import ImageRunner, RecordingFiles, Simulation, crash_images, simulate

SMALL = LogSettings(segment_bytes=64 << 10, cache_bytes_max=0)


class TestOnFiles(MetaSuite):
    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[MetaStore]:
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, folder)
            try:
                yield store
            finally:
                await store.close()


class TestInSimulation(MetaSuite):
    environment: Environment

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[MetaStore]:
        store = await FileMetaStore.open(
            self.environment, folder, settings=SMALL, snapshot_bytes_min=500
        )
        try:
            yield store
        finally:
            await store.close()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def scenario(simulation: Simulation) -> None:
            self.environment = simulation.environment
            await main

        simulate(1, scenario)


def test_it_comes_back_from_1000_crash_images() -> None:
    recording, states = RecordingFiles(), [tuple[Entry, ...]()]

    async def opened(files: Any) -> FileMetaStore:
        return await FileMetaStore.open(
            environment_over(files, 1), "/data/meta", settings=SMALL, snapshot_bytes_min=2000
        )

    async def record() -> None:
        rng = random.Random(5)
        for _ in range(3):
            store = await opened(recording)
            for _ in range(50):
                key = f"k{rng.randrange(5)}"
                remove = rng.random() < 0.2
                operation = RemoveKey(key) if remove else SetKey(key, rng.randbytes(90))
                await store.transact((), (operation,))
                states.append((await store.range()).entries)
                recording.mark(len(states) - 1)
            await store.close()

    async def check(image: Any) -> None:
        store = await opened(image.files)
        acked = max(image.marks, default=0)
        assert (await store.range()).entries in states[acked : acked + 2]
        await store.close()

    with ImageRunner() as runner:
        runner.run(record())
        images = list(crash_images(recording.journal, seed=1, per_point=3, inside_writes=2))
        assert len(images) >= 1000
        for image in images[:: len(images) // 1000][:1000]:
            runner.run(check(image))
