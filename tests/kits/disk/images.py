"""Crash images of a store: record random writes, then recover from every moment of them.

What must hold for each image: the store opens, and what it holds is what it held after some write
that is not older than the last acked one. The same holds for a crash during that recovery. Used by
the tests and by `make soak`.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NoReturn

from raftwood.base.environment import Environment, SystemClock
from raftwood.base.errors import DiskFull, Overloaded
from raftwood.base.files import Completion, Files, Operation
from raftwood.disk.segment_log import LogSettings, SegmentLog
from raftwood.disk.store import DataFolder, Store
from raftwood.testing import CrashImage, ImageRunner, RecordingFiles, crash_images
from raftwood.testing.file_system import LoseAll
from tests.kits.base.log_model import Group, LogModel, contents

SETTINGS = LogSettings(
    segment_bytes=16 << 10,
    cache_bytes_max=0,
    flush_bytes_max=4 << 10,
    pending_bytes_max=64 << 10,
    full_retry_ms=5,
)
WRITES = 90
LIVES = 3
RECOVERIES_EVERY = 20
"""Of so many images, one also shows a crash during its recovery."""
IMAGES_PER_RECOVERY = 12
FOLDER = "/data/store"
RecorderFactory = Callable[[], RecordingFiles]


class Broken(AssertionError):
    """An image from which the store does not come back as promised."""


def environment_over(files: Files, seed: int) -> Environment:
    def end_process(reason: str) -> NoReturn:
        raise Broken(f"the process ended itself: {reason}")

    return Environment(
        clock=SystemClock(), random=random.Random(seed), files=files, end_process=end_process
    )


async def _open(files: Files, seed: int) -> Store:
    return await Store.open(
        environment_over(files, seed), FOLDER, cluster="images", store=1, settings=SETTINGS
    )


def spread(images: list[CrashImage], seed: int, limit: int) -> list[CrashImage]:
    """Up to `limit` images from all over a life, others for another seed."""
    stride = max(1, len(images) // limit)
    return images[seed % stride :: stride][:limit]


class ForgetfulFiles(RecordingFiles):
    """A disk driver that leaves out what a mutant forgets."""

    forgotten: Callable[[Operation], bool]

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        kept = [operation for operation in operations if not type(self).forgotten(operation)]
        super().submit(kept, callback)


class LogImages:
    """A recorded life of a log: written, compacted, closed and opened again."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._runner = ImageRunner()
        self._recording = recorder()
        self._states: list[dict[int, Group]] = [{}]

    def check(self, *, limit: int, per_point: int = 2) -> int:
        """Recover from up to `limit` images, spread evenly; returns how many there were."""
        with self._runner:
            return self._check(limit, per_point)

    def _check(self, limit: int, per_point: int) -> int:
        self._runner.run(self._record())
        images = crash_images(
            self._recording.journal, seed=self._seed, per_point=per_point, inside_writes=2
        )
        chosen = spread(list(images), self._seed, limit)
        for number, image in enumerate(chosen):
            if number % RECOVERIES_EVERY == 0:
                self._check_recovery(image)
            self._runner.run(self._check_image(image))
        return len(chosen)

    def _check_recovery(self, image: CrashImage) -> None:
        """Crash again while the store is being opened, and while it is idle after that."""
        recording = RecordingFiles(image.file_system.after_power_loss(LoseAll(random.Random(0))))
        self._runner.run(self._open_and_wait(recording))
        images = crash_images(recording.journal, seed=self._seed, per_point=2, inside_writes=1)
        for again in spread(list(images), image.point, IMAGES_PER_RECOVERY):
            again.marks = image.marks
            again.kind = f"{image.kind} at {image.point}, then in recovery {again.kind}"
            self._runner.run(self._check_image(again))

    async def _open_and_wait(self, files: Files) -> None:
        await _open(files, 3)
        await asyncio.sleep(1.0)

    async def _record(self) -> None:
        rng, model = random.Random(self._seed), LogModel()
        lazy = random.Random(f"lazy {self._seed}")
        written = 0
        for _ in range(LIVES):
            store = await _open(self._recording, rng.getrandbits(30))
            for _ in range(WRITES // LIVES):
                future = model.copy()
                records = model.random_write(rng, groups=3, bytes_max=1900)
                future.apply(records)
                self._states.append(future.copy().groups)
                try:
                    if lazy.random() < 0.3:
                        # Durable with whatever comes after it.
                        store.log.write(records, written=_nothing)
                        if lazy.random() < 0.3:
                            store.log.when_durable(self._acked(written + 1))
                    else:
                        store.log.write(records, self._acked(written + 1))
                except (DiskFull, Overloaded):
                    self._states.pop()
                else:
                    model = future
                    written += 1
                await self._something_else(rng, store.log)
            self._recording.file_system.capacity_bytes = None
            await store.log.sync()  # closing at once would give up what still waits for room
            await store.close()

    async def _something_else(self, rng: random.Random, log: SegmentLog) -> None:
        """What may come between two writes: nothing, a wait for the disk, idleness, a full disk."""
        disk = self._recording.file_system
        draw = rng.random()
        if draw < 0.06:
            disk.capacity_bytes = disk.used_bytes() if disk.capacity_bytes is None else None
        elif draw < 0.14:
            await asyncio.sleep(0.05)  # long enough for a mark
        elif draw < 0.3:
            await asyncio.sleep(0.0)
        elif draw < 0.6:
            disk.capacity_bytes = None
            await log.sync()

    def _acked(self, number: int) -> Callable[[], None]:
        return lambda: self._recording.mark(number)

    async def _check_image(self, image: CrashImage) -> None:
        acked = max(image.marks, default=0)
        place = f"seed {self._seed}, point {image.point}, {image.kind}, {acked} writes acked"
        files = image.files
        store = await _open(files, 1)
        found = await contents(store.log)
        if not any(found == state for state in self._states[acked:]):
            raise Broken(
                f"{place}: what came back was never there, or is older than what was acked"
            )
        # What was recovered once must stay: write on top, close, and recover again.
        group = store.log.groups()[0] if store.log.groups() else 0
        next_index = store.log.bounds(group).next_index if store.log.groups() else 1
        store.log.append(group, term=9, first_index=next_index, count=1, payload=b"after")
        expected = await contents(store.log)
        await store.close()
        again = await _open(files, 2)
        if await contents(again.log) != expected:
            raise Broken(f"{place}: the second recovery differs from the first")
        await again.close()


def _nothing() -> None: ...


class FolderImages:
    """A recorded life of the data folder: made, initialised, closed and opened by other stores."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._runner = ImageRunner()
        self._recording = recorder()

    def check(self, *, limit: int) -> int:
        """Recover from up to `limit` images; returns how many there were."""
        with self._runner:
            self._runner.run(self._record())
            images = crash_images(
                self._recording.journal, seed=self._seed, per_point=60, inside_writes=20
            )
            chosen = spread(list(images), self._seed, limit)
            for image in chosen:
                self._runner.run(self._check_image(image))
        return len(chosen)

    async def _record(self) -> None:
        for round_number in range(3):
            environment = environment_over(self._recording, self._seed * 7 + round_number)
            folder = await DataFolder.open(environment, FOLDER, cluster="images", store=1)
            self._recording.mark(folder.identity)
            log = await SegmentLog.open(environment, folder.log_path, SETTINGS)
            await folder.mark_initialised()
            self._recording.mark(folder.identity)
            await log.close()
            await folder.close()

    async def _check_image(self, image: CrashImage) -> None:
        environment = environment_over(image.files, self._seed + 1)
        folder = await DataFolder.open(environment, FOLDER, cluster="images", store=1)
        if image.marks:
            promised = image.marks[-1]
            if folder.identity.incarnation != promised.incarnation:
                raise Broken(f"seed {self._seed}, point {image.point}: another incarnation")
            if promised.initialised and not folder.identity.initialised:
                raise Broken(f"seed {self._seed}, point {image.point}: forgot that it has a log")
        await folder.close()
