"""Crash images of a store's snapshots: saves, transfers and removals, interrupted at any point.

What must hold for each image: recovery succeeds; a snapshot is whole or absent; one that was acked
is there, one whose removal was acked is not, nor one that was given up; nothing unfinished is left.
The same holds for a crash during recovery.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Final

from raftwood.base import files as seam
from raftwood.base.errors import ProtocolError
from raftwood.base.files import Files, perform
from raftwood.raft.core import ConfState
from raftwood.raft.snapshot_files import ExtraFileList, SnapshotFiles
from raftwood.raft.snapshot_format import SnapshotMeta
from raftwood.testing import CrashImage, ImageRunner, RecordingFiles, crash_images
from raftwood.testing.file_system import LoseAll
from tests.kits.disk.images import Broken, RecorderFactory, spread
from tests.kits.fuzz.snapshots import container

FOLDER: Final = "/data/store/snapshots"
PIECE_BYTES: Final = 600
LIVES: Final = 3
STEPS: Final = 12
GROUPS: Final = 3
RECOVERIES_EVERY: Final = 20
IMAGES_PER_RECOVERY: Final = 6

THERE, GONE, OPEN = "there", "gone", "open"
"""What was promised of a snapshot; open while something is done to it."""
Key = tuple[int, int]


class _Content:
    """What the snapshot of a group at an index holds, always the same."""

    def __init__(self, key: Key) -> None:
        rng = random.Random(f"content {key}")
        self.meta = SnapshotMeta(*key, 7, ConfState((1, 2, 3)), {1: "one"}, rng.randbytes(50))
        self.chunks = [rng.randbytes(rng.randrange(900)) for _ in range(rng.randrange(4))]
        names = ["a.sst", "b"][: rng.choice((0, 0, 1, 2))]
        self.extra = {name: rng.randbytes(rng.randrange(700)) for name in names}

    def container(self) -> bytes:
        pieces = {name: [data] if data else [] for name, data in self.extra.items()}
        return container(self.meta, self.chunks, pieces)


class SnapshotImages:
    """A recorded life of a store's snapshots."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._runner = ImageRunner()
        self._recording = recorder()

    def check(self, *, limit: int) -> int:
        """Recover from up to `limit` images, spread evenly; returns how many there were."""
        with self._runner:
            self._runner.run(self._record())
            images = crash_images(
                self._recording.journal, seed=self._seed, per_point=3, inside_writes=1
            )
            chosen = spread(list(images), self._seed, limit)
            for number, image in enumerate(chosen):
                if number % RECOVERIES_EVERY == 0:
                    self._check_recovery(image)
                self._runner.run(self._check_image(image))
        return len(chosen)

    def _check_recovery(self, image: CrashImage) -> None:
        """Crash again while the snapshots are being recovered."""
        recording = RecordingFiles(image.file_system.after_power_loss(LoseAll(random.Random(0))))
        self._runner.run(_recovered(recording))
        images = crash_images(recording.journal, seed=self._seed, per_point=2, inside_writes=1)
        for again in spread(list(images), image.point, IMAGES_PER_RECOVERY):
            again.marks = image.marks
            again.kind = f"{image.kind} at {image.point}, then in recovery {again.kind}"
            self._runner.run(self._check_image(again))

    # The life that is recorded.

    async def _record(self) -> None:
        files, rng = self._recording, self._random
        for _ in range(LIVES):
            snapshots = await _recovered(files)
            for _ in range(STEPS):
                groups = rng.sample(range(GROUPS), rng.choice((1, 1, 2)))
                async with asyncio.TaskGroup() as tasks:
                    for group in groups:
                        tasks.create_task(self._step(snapshots, group))

    async def _step(self, snapshots: SnapshotFiles, group: int) -> None:
        rng = self._random
        stored = [(each.group, each.index) for each in snapshots.stored() if each.group == group]
        draw = rng.random()
        if stored and draw < 0.3:
            await self._remove(snapshots, rng.choice(stored))
        elif stored and draw < 0.35:
            await self._remove_group(snapshots, group, stored)
        elif stored and draw < 0.45:
            async with await snapshots.open(*rng.choice(stored)) as reader:
                await reader.extract_extra()
        else:
            key = group, rng.randrange(1, 30)
            if key not in stored:
                add = self._save if draw < 0.75 else self._receive
                await add(snapshots, key)

    async def _save(self, snapshots: SnapshotFiles, key: Key) -> None:
        content, extra = _Content(key), ExtraFileList()
        stop_after = self._random.choice((None, None, None, 0, 1, 2))
        pulled = 0

        def chunks() -> Iterator[bytes]:
            nonlocal pulled
            for pulled, chunk in enumerate(content.chunks, 1):  # noqa: B007
                yield chunk
            for name in content.extra:
                extra.add(name, f"/data/{key[0]}-{name}")

        for name, data in content.extra.items():
            path = f"/data/{key[0]}-{name}"
            await perform(
                self._recording,
                seam.Open(path, create=True),
                seam.Truncate(path, 0),
                seam.Write(path, 0, [data]),
                seam.Close(path),
            )
        self._promise(key, OPEN)
        stored = await snapshots.save(
            content.meta,
            chunks(),
            extra,
            lambda: stop_after is not None and pulled >= stop_after,
        )
        self._promise(key, GONE if stored is None else THERE)

    async def _receive(self, snapshots: SnapshotFiles, key: Key) -> None:
        rng, meta = self._random, _Content(key).meta
        data = bytearray(_Content(key).container())
        fate = rng.choice(("whole", "whole", "whole", "damaged", "aborted"))
        if fate == "damaged":
            data[rng.randrange(len(data))] ^= 1
        self._promise(key, OPEN)
        receiver = await snapshots.begin_receive(
            group=meta.group, index=meta.index, term=meta.term, size=len(data), sender=2
        )
        try:
            for offset in range(0, len(data), PIECE_BYTES):
                await receiver.write(offset, bytes(data[offset : offset + PIECE_BYTES]))
                if fate == "aborted":
                    await receiver.abort()
                    break
            else:
                await receiver.finish()
        except ProtocolError:
            if fate != "damaged":
                raise
        self._promise(key, THERE if fate == "whole" else GONE)

    async def _remove(self, snapshots: SnapshotFiles, key: Key) -> None:
        self._promise(key, OPEN)
        await snapshots.remove(*key)
        self._promise(key, GONE)

    async def _remove_group(self, snapshots: SnapshotFiles, group: int, keys: list[Key]) -> None:
        for key in keys:
            self._promise(key, OPEN)
        await snapshots.remove_group(group)
        for key in keys:
            self._promise(key, GONE)

    def _promise(self, key: Key, promise: str) -> None:
        self._recording.mark((key, promise))

    # What is found after a crash.

    async def _check_image(self, image: CrashImage) -> None:
        place = f"seed {self._seed}, point {image.point}, {image.kind}"
        files = image.files
        snapshots = await _recovered(files)
        if snapshots.damaged:
            raise Broken(f"{place}: {snapshots.damaged}")
        found = {(each.group, each.index) for each in snapshots.stored()}
        for key, promise in dict(image.marks).items():
            if promise != OPEN and (promise == THERE) != (key in found):
                raise Broken(f"{place}: snapshot {key} was promised to be {promise}")
        for key in sorted(found):
            if not await _is_whole(snapshots, files, key):
                raise Broken(f"{place}: snapshot {key} is not what was saved")
        (names,) = await perform(files, seam.ListDirectory(FOLDER))
        if len(names) != len(found):
            raise Broken(f"{place}: left behind among {names}")


async def _recovered(files: Files) -> SnapshotFiles:
    await perform(files, seam.MakeDirectory("/data/store"), seam.SyncDirectory("/data"))
    return await SnapshotFiles.recover(files, FOLDER, piece_bytes=PIECE_BYTES)


async def _is_whole(snapshots: SnapshotFiles, files: Files, key: Key) -> bool:
    content = _Content(key)
    async with await snapshots.open(*key) as reader:
        if reader.meta != content.meta:
            return False
        extra = {}
        for name, path in (await reader.extract_extra()).items():
            (data,) = await perform(files, seam.Read(path, 0, 1 << 20))
            extra[name] = bytes(data)
        chunks = [chunk async for chunk in reader.chunks()]
    return (chunks, extra) == (content.chunks, content.extra)
