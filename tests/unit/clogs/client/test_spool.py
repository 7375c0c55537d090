"""The spool: what it keeps outlives crashes, full disks and failing ones."""

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import DiskFull, InvalidInput, StoreLocked
from raftwood.base.files import Operation
from raftwood.clogs.client import spool as slots_module
from raftwood.clogs.client import spool as spool_module
from raftwood.clogs.client.shipping_rules import QueuedBatch
from raftwood.clogs.client.spool import Spool, SpoolFailed, SpoolFull, open_slots
from raftwood.disk.real_environment import real_environment
from raftwood.testing import ImageRunner, ImmediateFiles
from raftwood.testing.crash_images import CrashImage, RecordingFiles, crash_images
from tests.kits.clogs.spool import batch_of, body_of, entry_of, open_spool
from tests.kits.disk.log_in_memory import WatchedFiles, environment_over, run

FILES = ["a.log", "b.log", "c.log"]


async def keep(spool: Spool, name: str, sequence: int, **more: int) -> QueuedBatch:
    entry = entry_of(batch_of(name, sequence, **more))
    spool.keep(entry, lambda: None)
    await spool.sync()
    return entry


def test_what_was_kept_comes_back_in_order_and_resumed() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        spool = await open_spool(files)
        kept = [await keep(spool, "a.log", number, count=number) for number in (3, 1, 2, 5, 4)]
        await keep(spool, "b.log", 1)
        spool.forget(kept[0])
        held_bytes = spool.held_bytes
        await spool.close()
        again = await open_spool(files)
        entries = again.recover()
        assert again.held_bytes == held_bytes
        assert [(each.name, each.count) for each in entries] == [
            ("a.log", 1),
            ("a.log", 2),
            ("a.log", 4),
            ("a.log", 5),
            ("b.log", 3),
        ]
        for entry, text in zip(
            entries, ["a.log 1", "a.log 2", "a.log 4", "a.log 5", "b.log 1"], strict=True
        ):
            assert entry.batch is None
            assert entry.was_sent
            batch = await again.load(entry)
            assert batch.is_resumed
            assert body_of(batch) == text
            assert (batch.count, len(batch.body)) == (entry.count, entry.size)
            again.forget(entry)
        assert again.is_empty
        # A batch of this life is not resumed, though the file is the same.
        entry = await keep(again, "a.log", 9)
        assert not (await again.load(entry)).is_resumed
        await again.close()

    run(main())


def test_nothing_is_read_when_a_spool_is_recovered() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        spool = await open_spool(files)
        for number in range(1, 30):
            await keep(spool, f"{number % 7}.log", number)
        await spool.close()
        reading = WatchedFiles(lambda _: None)
        reading.file_system = files.file_system
        again = await open_spool(reading)
        submitted = reading.submitted
        assert len(again.recover()) == 29
        assert reading.submitted == submitted
        await again.close()

    run(main())


class Life:
    """Keeps and forgets batches at random, and marks what was promised."""

    def __init__(self, seed: int, *, forgets_early: bool = False) -> None:
        self.files = RecordingFiles()
        self._random = random.Random(seed)
        self._forgets_early = forgets_early
        self._sequences = dict.fromkeys(FILES, 0)

    async def run(self, turns: int) -> None:
        spool = await open_spool(self.files)
        held: dict[str, list[QueuedBatch]] = {name: [] for name in FILES}
        for _ in range(turns):
            name = self._random.choice(FILES)
            if self._random.random() < 0.6 or not held[name]:
                self._sequences[name] += 1
                sequence = self._sequences[name]
                entry = entry_of(batch_of(name, sequence, size=self._random.randrange(20, 1500)))
                spool.keep(entry, self._marked("kept", name, sequence))
                held[name].append(entry)
            else:
                entry = held[name].pop(0)
                assert entry.batch is not None
                acked = self._marked("acked", name, entry.batch.sequence)
                if self._forgets_early:
                    spool.forget(entry)
                    await spool.sync()
                    acked()
                else:
                    acked()
                    spool.forget(entry)
            if self._random.random() < 0.5:
                await asyncio.sleep(0)
        await spool.close()

    def _marked(self, what: str, name: str, sequence: int) -> Callable[[], None]:
        return lambda: self.files.mark((what, name, sequence))


async def check_image(image: CrashImage, acks_max: int) -> None:
    spool = await open_spool(image.files)
    found: list[tuple[str, int]] = []
    for entry in spool.recover():
        batch = await spool.load(entry)
        assert batch.is_resumed
        assert body_of(batch) == f"{entry.name} {batch.sequence}"
        found.append((entry.name, batch.sequence))
    assert len(set(found)) == len(found), "one came back twice"
    for name in FILES:
        sequences = [sequence for each, sequence in found if each == name]
        assert sequences == sorted(sequences), "they came back in another order"
    marks = {what: {m[1:] for m in image.marks if m[0] == what} for what in ("kept", "acked")}
    assert marks["kept"] - marks["acked"] <= set(found), "what was kept is lost"
    assert len(marks["acked"] & set(found)) <= acks_max, "too much would be sent again"
    await spool.close()


def check_crashes(seed: int, *, forgets_early: bool = False) -> int:
    life = Life(seed, forgets_early=forgets_early)
    # More are acked while the sync of so many is under way, of two flushes at the most.
    acks_max = spool_module.ACKS_UNSYNCED_MAX * 3
    images = 0
    with ImageRunner() as runner:
        runner.run(life.run(32))
        for image in crash_images(life.files.journal, seed=seed, per_point=1, inside_writes=1):
            images += 1
            runner.run(check_image(image, acks_max))
    return images


@pytest.mark.parametrize("seed", range(2))
def test_after_any_crash_all_that_was_kept_and_not_acked_comes_back_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "ACKS_UNSYNCED_MAX", 4)
    assert check_crashes(seed) > 100


def test_truncation_before_the_ack_is_caught() -> None:
    with pytest.raises(AssertionError, match="what was kept is lost"):
        check_crashes(1, forgets_early=True)


def test_acks_that_are_never_synced_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ACKS_UNSYNCED_MAX", 4)
    life = Life(1)

    async def many_acks() -> None:
        spool = await open_spool(life.files)
        entries = [await keep(spool, "a.log", number) for number in range(1, 20)]
        monkeypatch.setattr(spool_module, "ACKS_UNSYNCED_MAX", 1000)
        for number, entry in enumerate(entries, 1):
            life._marked("acked", "a.log", number)()
            spool.forget(entry)
            await asyncio.sleep(0)

    with ImageRunner() as runner:
        runner.run(many_acks())
        with pytest.raises(AssertionError, match="too much would be sent again"):
            for image in crash_images(life.files.journal, seed=1, per_point=0, inside_writes=0):
                runner.run(check_image(image, 12))


def test_a_full_spool_takes_no_more_until_something_is_forgotten() -> None:
    async def main() -> None:
        spool = await open_spool(ImmediateFiles(), bytes_max=1000)
        first = await keep(spool, "a.log", 1, size=800)
        with pytest.raises(SpoolFull, match="spool_bytes_max"):
            await keep(spool, "a.log", 2, size=800)
        assert spool.held_bytes <= 1000
        spool.forget(first)
        await keep(spool, "a.log", 2, size=800)
        await spool.close()

    run(main())


def test_a_full_disk_is_told_and_left_for_when_there_is_room() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        spool = await open_spool(files)
        files.file_system.capacity_bytes = files.file_system.used_bytes()
        kept: list[QueuedBatch] = []
        with pytest.raises(DiskFull):
            while len(kept) < 1000:
                kept.append(await keep(spool, "a.log", len(kept) + 1, size=1000))
        for entry in kept[:-1]:  # what is acked is noted in the reserve, or owed
            spool.forget(entry)
        files.file_system.capacity_bytes = None
        await asyncio.sleep(1)
        await keep(spool, "a.log", 1000)
        await spool.close()
        again = await open_spool(files)
        names = [body_of(await again.load(each)) for each in again.recover()]
        assert names == [f"a.log {len(kept)}", "a.log 1000"]
        await again.close()

    run(main())


@pytest.mark.parametrize("kind", [seam.DataSync, seam.Write])
def test_a_disk_that_fails_ends_the_spool_and_not_the_process(kind: type[Operation]) -> None:
    async def main() -> None:
        is_failing = False

        def watch(operation: Operation) -> None:
            if is_failing and isinstance(operation, kind):
                raise OSError(errno.EIO, "broken")

        files = WatchedFiles(watch)
        spool = await open_spool(files)
        told: list[Spool] = []
        spool.on_failed = told.append
        first = await keep(spool, "a.log", 1)
        is_failing = True
        entry = entry_of(batch_of("a.log", 2))
        spool.keep(entry, lambda: pytest.fail("what failed was called kept"))
        await spool.sync()
        assert told == [spool]
        with pytest.raises(SpoolFailed):
            await keep(spool, "a.log", 3)
        # What was durable before can still be read.
        assert body_of(await spool.load(first)) == "a.log 1"
        spool.forget(first)
        await spool.close()
        is_failing = False
        again = await open_spool(files)
        assert body_of(await again.load(again.recover()[0])) == "a.log 1"
        await again.close()

    run(main())


def test_slots_are_taken_one_each_and_those_that_were_left_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        folder = f"{tmp_path}/spool"
        with real_environment() as one, real_environment() as other:
            first = await open_slots(one, folder, bytes_max=1 << 20)
            second = await open_slots(other, folder, bytes_max=1 << 20)
            assert (first.own.path, second.own.path) == (f"{folder}/0", f"{folder}/1")
            with pytest.raises(StoreLocked):
                await Spool.open(one, f"{folder}/1", bytes_max=1 << 20)
            await keep(second.own, "a.log", 1)
            await second.own.close()
            third = await open_slots(other, folder, bytes_max=1 << 20)
            assert third.own.path == f"{folder}/1"
            await third.own.close()
            await first.own.close()
            fourth = await open_slots(one, folder, bytes_max=1 << 20)
            assert [each.path for each in fourth.left] == [f"{folder}/1"]
            assert len(fourth.left[0].recover()) == 1
            for spool in (fourth.own, *fourth.left):
                await spool.close()

    asyncio.run(main())


def test_a_damaged_slot_is_left_alone_and_another_one_used() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        environment = environment_over(files)
        first = await open_slots(environment, "/data/spool", bytes_max=1 << 20)
        await first.own.close()
        files.file_system.flip_bit("/data/spool/0/IDENTITY", offset=40, bit=1)
        second = await open_slots(environment, "/data/spool", bytes_max=1 << 20)
        assert second.own.path == "/data/spool/1"
        await second.own.close()

    run(main())


@pytest.mark.parametrize("damage", ["lost end", "flipped"])
def test_a_damaged_slot_tells_how_many_lines_are_not_shipped(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        files = ImmediateFiles()
        environment = environment_over(files)
        first = await open_slots(environment, "/data/spool", bytes_max=1 << 20)
        for sequence in range(1, 4):
            await keep(first.own, "a.log", sequence)
        await first.own.close()
        disk, path = files.file_system, "/data/spool/0/log/0000000001.segment"
        data = disk.contents(path)
        if damage == "flipped":
            disk.flip_bit(path, offset=data.rindex(b"a.log"), bit=1)
        else:
            disk.cut(path, length=data.rindex(b"RWFLUSH", 0, data.rindex(b"a.log")))
        second = await open_slots(environment, "/data/spool", bytes_max=1 << 20)
        assert second.own.path == "/data/spool/1"
        assert second.left == []
        await second.own.close()

    run(main())
    told = capsys.readouterr()
    assert "lines_that_can_be_read=6" in told.out + told.err  # of two batches of three
    assert "/data/spool/0" in told.out + told.err


def test_where_all_slots_are_taken_the_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "SLOTS_MAX", 1)

    async def main() -> None:
        file_system = ImmediateFiles().file_system
        one = environment_over(ImmediateFiles(file_system))
        other = environment_over(ImmediateFiles(file_system))
        first = await open_slots(one, "/data/spool", bytes_max=1 << 20)
        with pytest.raises(InvalidInput, match="give another spool_folder"):
            await open_slots(other, "/data/spool", bytes_max=1 << 20)
        await first.own.close()

    run(main())


def test_a_batch_in_doubt_keeps_no_more_than_its_group_on_the_disk() -> None:
    async def main() -> None:
        spool = await open_spool(ImmediateFiles())
        entries = [await keep(spool, "a.log", number) for number in range(1, 101)]
        whole = spool._log.statistics().live_bytes
        for entry in entries[1:]:
            entry.is_dropped = True
            spool.forget(entry)
        await spool.sync()
        assert spool.held_batches == 1
        assert spool._log.statistics().live_bytes < whole / 4
        await spool.close()

    run(main())


def test_what_was_written_last_comes_first_if_it_is_older_though_its_group_is_another() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        spool = await open_spool(files)
        for number in [*range(11, 51), *range(1, 11)]:
            await keep(spool, "a.log", number)
        await spool.close()
        again = await open_spool(files)
        entries = again.recover()
        bodies = [body_of(await again.load(entry)) for entry in entries]
        assert bodies == [f"a.log {number}" for number in range(1, 51)]
        await again.close()

    run(main())
