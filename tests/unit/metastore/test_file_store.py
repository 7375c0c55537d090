"""The metastore in one folder: on real files, in simulation, and after crashes."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kits.disk.images import environment_over
from tests.kits.metastore.meta_suite import MetaSuite

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull
from raftwood.base.seams import MetaStore, RemoveKey, SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings
from raftwood.metastore import commands
from raftwood.metastore.commands import Command
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.rules import MetastoreState
from raftwood.testing import ImageRunner, RecordingFiles, Simulation, crash_images, simulate

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


class AnswersTooEarly(FileMetaStore):
    """A mutant: applies and answers a command before it is durable."""

    async def _execute(self, command: Command) -> bytes:
        loop = asyncio.get_running_loop()
        durable = loop.create_task(super()._execute(command))
        self.under_way = [*getattr(self, "under_way", []), durable]
        ahead = MetastoreState.restored(self._state.snapshot())
        await asyncio.sleep(0)
        return ahead.apply(commands.encode(command), self._now_ms())

    async def close(self) -> None:
        await asyncio.gather(*self.under_way)
        await super().close()


def check_crash_images(kind: type[FileMetaStore], *, wanted: int) -> None:
    """Recover from images of all moments of a recorded life: all that was acked is there."""
    recording, states = RecordingFiles(), [dict[str, tuple[bytes, int]]()]

    async def opened(files: Any, kind: type[FileMetaStore]) -> FileMetaStore:
        return await kind.open(
            environment_over(files, 1), "/data/meta", settings=SMALL, snapshot_bytes_min=2000
        )

    async def record() -> None:
        rng = random.Random(5)
        for _ in range(3):
            store = await opened(recording, kind)
            for _ in range(50):
                key, state = f"k{rng.randrange(5)}", dict(states[-1])
                if rng.random() < 0.2:
                    state.pop(key, None)
                    await store.transact((), (RemoveKey(key),))
                else:
                    value = rng.randbytes(90)
                    outcome = await store.transact((), (SetKey(key, value),))
                    state[key] = (value, outcome.version)
                states.append(state)
                recording.mark(len(states) - 1)
            await store.close()

    async def check(image: Any) -> None:
        store = await opened(image.files, FileMetaStore)
        acked = max(image.marks, default=0)
        entries = (await store.range()).entries
        found = {each.key: (each.value, each.version) for each in entries}
        assert found in states[acked : acked + 2], "what was acked is lost"
        await store.close()

    with ImageRunner() as runner:
        runner.run(record())
        images = list(crash_images(recording.journal, seed=1, per_point=3, inside_writes=2))
        assert len(images) >= wanted
        for image in images[:: len(images) // wanted][:wanted]:
            runner.run(check(image))


def test_it_comes_back_from_1000_crash_images() -> None:
    check_crash_images(FileMetaStore, wanted=1000)


def test_crash_images_show_a_store_that_answers_before_it_is_durable() -> None:
    with pytest.raises(AssertionError, match="what was acked is lost"):
        check_crash_images(AnswersTooEarly, wanted=300)


def test_closing_answers_commands_that_wait_for_room_on_disk() -> None:
    async def main() -> None:
        files = RecordingFiles()
        store = await FileMetaStore.open(
            environment_over(files, 1), "/data/meta", settings=SMALL, snapshot_bytes_min=20_000
        )
        await store.transact((), (SetKey("acked", b"x"),))
        files.file_system.capacity_bytes = 0
        waiting = [
            asyncio.create_task(store.transact((), (SetKey(f"k{number}", bytes(4000)),)))
            for number in range(40)
        ]
        await asyncio.sleep(1)
        assert not all(task.done() for task in waiting)
        await store.close()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(answer, DiskFull) for answer in answers)
        files.file_system.capacity_bytes = None
        again = await FileMetaStore.open(environment_over(files, 1), "/data/meta", settings=SMALL)
        found = {each.key for each in (await again.range()).entries}
        done = {f"k{n}" for n, answer in enumerate(answers) if not isinstance(answer, DiskFull)}
        assert found == {"acked"} | done
        await again.close()

    with ImageRunner() as runner:
        runner.run(main())


def test_a_large_snapshot_is_written_while_commands_are_answered() -> None:
    async def scenario(simulation: Simulation) -> None:
        async def opened() -> FileMetaStore:
            return await FileMetaStore.open(
                simulation.environment, "/data/meta", settings=SMALL, snapshot_bytes_min=50_000
            )

        store = await opened()
        for number in range(60):
            await store.transact((), (SetKey(f"k{number}", bytes([number]) * 1000),))
            if store._snapshotting is not None:
                break
        assert store._snapshotting is not None
        answered = 0
        while not store._snapshotting.done():
            await store.transact((), (SetKey("meanwhile", b"%d" % answered),))
            answered += 1
        assert answered > 1
        before = await store.range()
        await store.close()
        again = await opened()
        assert await again.range() == before
        await again.close()

    simulate(1, scenario)
