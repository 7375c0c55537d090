"""Crash images find stores that break their word, and leave good ones alone."""

import asyncio
import random

import pytest

from raftwood.base.files import (
    DataSync,
    Files,
    Open,
    Preallocate,
    Read,
    Rename,
    Size,
    SyncDirectory,
    Write,
    perform,
)
from raftwood.testing import (
    Deadlock,
    ImageRunner,
    ImmediateFiles,
    Leaked,
    RecordingFiles,
    crash_images,
)

LOG = "/data/log"


class Store:
    """A tiny log with switches for the mistakes that stores make."""

    def __init__(self, files: Files, mistake: str = "") -> None:
        self.files = files
        self.mistake = mistake

    async def create(self) -> None:
        await perform(self.files, Open(LOG, create=True), Preallocate(LOG, 1 << 16))
        await perform(self.files, DataSync(LOG))
        if self.mistake != "no directory sync":
            await perform(self.files, SyncDirectory("/data"))

    async def append(self, number: int) -> None:
        record = bytes([number]) * 20
        operations = [Write(LOG, number * 20, [record])]
        if self.mistake != "no sync before ack":
            operations.append(DataSync(LOG))  # type: ignore[arg-type]
        await perform(self.files, *operations)

    async def recover(self) -> list[int]:
        if (await perform(self.files, Size(LOG)))[0] is None:
            return []
        await perform(self.files, Open(LOG))
        (data,) = await perform(self.files, Read(LOG, 0, 1 << 16))
        found = []
        for number in range(1, len(data) // 20):
            if data[number * 20 : number * 20 + 20] != bytes([number]) * 20:
                break
            found.append(number)
        return found


def lost_acks(mistake: str) -> tuple[int, dict[str, int]]:
    async def use(recording: RecordingFiles) -> None:
        store = Store(recording, mistake)
        await store.create()
        for number in range(1, 60):
            await store.append(number)
            recording.mark(number)

    count = 0
    lost: dict[str, int] = {}
    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use(recording))
        for image in crash_images(recording.journal, seed=1):
            count += 1
            found = runner.run(Store(image.files).recover())
            if found[: len(image.marks)] != list(image.marks):
                lost[image.kind] = lost.get(image.kind, 0) + 1
    return count, lost


def test_a_store_that_syncs_loses_nothing_it_acked() -> None:
    count, lost = lost_acks("")
    assert count > 600
    assert lost == {}


def test_a_store_that_acks_before_it_syncs_is_caught() -> None:
    _, lost = lost_acks("no sync before ack")
    assert lost["nothing unsynced kept"] > 50
    assert lost["random"] > 50


def test_a_store_that_never_syncs_its_directory_is_caught() -> None:
    _, lost = lost_acks("no directory sync")
    assert lost["unsynced names lost"] > 50


def test_images_are_the_same_for_the_same_seed() -> None:
    async def use(recording: RecordingFiles) -> None:
        store = Store(recording, "no sync before ack")
        await store.create()
        for number in range(1, 20):
            await store.append(number)

    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use(recording))

    def contents(seed: int) -> list[tuple[int, str, bytes]]:
        return [
            (image.point, image.kind, image.file_system.contents(LOG))
            for image in crash_images(recording.journal, seed=seed)
            if LOG in image.file_system.files
        ]

    assert contents(1) == contents(1)
    assert contents(1) != contents(2)


def test_an_image_says_which_submissions_were_answered() -> None:
    async def use(recording: RecordingFiles) -> None:
        for name in "abc":
            path = f"/data/{name}"
            await perform(recording, Open(path, create=True), SyncDirectory("/data"))

    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use(recording))
    answered = {}
    for image in crash_images(recording.journal, seed=1):
        assert len(image.file_system.files) >= image.completed
        answered[image.point] = image.completed
    assert answered == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3}


def test_replacing_a_file_by_rename_leaves_the_old_or_the_new_one() -> None:
    async def use(recording: RecordingFiles) -> None:
        for version in range(10):
            await perform(
                recording,
                Open("/data/new", create=True),
                Write("/data/new", 0, [b"%d" % version * 5000]),
                DataSync("/data/new"),
                Rename("/data/new", "/data/current"),
                SyncDirectory("/data"),
            )
            recording.mark(version)

    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use(recording))
    seen = set()
    for image in crash_images(recording.journal, seed=1, per_point=10):
        if image.marks:
            content = image.file_system.contents("/data/current")
            assert len(content) == 5000
            assert len(set(content)) == 1
            assert int(content[:1]) - image.marks[-1] in (0, 1)
            seen.add(int(content[:1]) - image.marks[-1])
    assert seen == {0, 1}


def test_an_image_can_be_written_without_changing_the_others() -> None:
    async def use(files: ImmediateFiles) -> None:
        await perform(files, Open(LOG, create=True), Write(LOG, 0, [b"x" * 10_000]), DataSync(LOG))
        await perform(files, SyncDirectory("/data"))

    with ImageRunner() as runner:
        recording = RecordingFiles()
        runner.run(use(recording))
        whole = [i for i in crash_images(recording.journal, seed=1) if i.point == 4]
        files = whole[0].files
        runner.run(perform(files, Open(LOG), Write(LOG, random.Random(1).randrange(100), [b"y"])))
        assert b"y" in whole[0].file_system.contents(LOG)
        again = [i for i in crash_images(recording.journal, seed=1) if i.point == 4]
        assert again[0].file_system.contents(LOG) == b"x" * 10_000


def test_recovery_that_waits_for_ever_is_found() -> None:
    class Silent(ImmediateFiles):
        def submit(self, *_: object) -> None:
            return

    with ImageRunner() as runner, pytest.raises(Deadlock):
        runner.run(perform(Silent(), Size(LOG)))


def test_what_recovery_leaves_running_is_dropped_and_what_fails_is_told() -> None:
    ran: list[str] = []

    async def leave_behind() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, ran.append, "timer")
        tasks.append(asyncio.create_task(asyncio.sleep(1)))

    async def fail_in_a_callback() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    async def wait() -> None:
        await asyncio.sleep(10)

    tasks: list[asyncio.Task[None]] = []
    with ImageRunner() as runner:
        runner.run(leave_behind())
        runner.run(wait())
        assert ran == []
        with pytest.raises(Leaked, match="ZeroDivisionError"):
            runner.run(fail_in_a_callback())
        runner.run(wait())
