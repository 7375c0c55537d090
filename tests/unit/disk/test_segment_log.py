import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from raftwood.base import files as seam
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    OutOfRange,
    Overloaded,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.files import perform
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import (
    DropGroup,
    LogSettings,
    Run,
    SegmentLog,
    SetState,
    TruncateHead,
    TruncateTail,
)
from tests.kits.base.log_model import LogModel, contents
from tests.kits.running import run, until

SMALL = LogSettings(segment_bytes=16 << 10, cache_bytes_max=4 << 10, flush_bytes_max=8 << 10)


@asynccontextmanager
async def opened(folder: Path, settings: LogSettings = SMALL) -> AsyncIterator[SegmentLog]:
    with real_environment() as real:
        environment = msgspec.structs.replace(real, end_process=_raise)
        log = await SegmentLog.open(environment, f"{folder}/log", settings)
        try:
            yield log
        finally:
            await log.close()


def _raise(reason: str) -> NoReturn:
    raise AssertionError(reason)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "log").glob("*.segment"))


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 2, b"ab"), Run(2, 1, 1, 1, b""), SetState(1, b"vote"))
            await log.commit(Run(1, 2, 3, 1, b"c" * 5000))
            before = await contents(log)
        async with opened(tmp_path) as log:
            assert await contents(log) == before
            assert log.state(1) == b"vote"
            assert log.term_of(1, 2) == 1
            assert log.term_of(1, 3) == 2

    run(main())


def test_a_run_is_read_as_the_bytes_that_a_peer_can_verify(tmp_path: Path) -> None:
    from raftwood.disk.segment_log.format import record_is_intact

    async def main() -> None:
        async with opened(tmp_path) as log:
            for payload in (b"small", b"x" * 7000):
                first = log.bounds(1).next_index if 1 in log.groups() else 1
                await log.commit(Run(1, 1, first, 1, payload))
        async with opened(tmp_path) as log:
            for stored in await log.read(1, 1):
                data = bytes(stored.header) + bytes(stored.payload)
                assert record_is_intact(data, 0, len(stored.payload))

    run(main())


def test_any_mix_of_writes_equals_the_model_through_restarts(tmp_path: Path) -> None:
    async def main() -> None:
        rng, model = random.Random(7), LogModel()
        for _ in range(6):
            async with opened(tmp_path) as log:
                assert await contents(log) == model.groups
                for step in range(400):
                    records = model.random_write(rng, groups=5, bytes_max=900)
                    model.apply(records)
                    log.write(records)
                    if step % 50 == 0:
                        await log.sync()
                        assert await contents(log) == model.groups
                    if step % 7 == 0:
                        await asyncio.sleep(0)

    run(main())


def test_a_write_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 2, b"ab"), Run(1, 1, 3, 1, b"c"))
            before = await contents(log)
            good = Run(1, 1, 4, 1, b"d")
            for bad, error in (
                (Run(1, 1, 9, 1, b""), InvalidInput),
                (Run(1, 1, 5, 0, b""), InvalidInput),
                (Run(1, -1, 5, 1, b""), InvalidInput),
                (Run(-1, 1, 1, 1, b""), InvalidInput),
                (TruncateTail(1, 2), InvalidInput),
                (TruncateTail(1, 3), InvalidInput),
                (TruncateHead(1, -1), InvalidInput),
                (DropGroup(9), NotFound),
                (SetState(1, bytes(70_000)), TooLarge),
                (Run(1, 1, 5, 1, bytes(9000)), TooLarge),
            ):
                with pytest.raises(error):
                    log.write((good, bad))
                assert await contents(log) == before
            with pytest.raises(InvalidInput, match="goes on at index 4, not 7"):
                log.append(1, term=1, first_index=7, count=1, payload=b"")
            with pytest.raises(OutOfRange, match="holds 1 to 3"):
                await log.read(1, 4)
            with pytest.raises(NotFound, match="no group 5"):
                await log.read(5, 1)

    run(main())


def test_entries_in_memory_and_on_disk_are_read_together(tmp_path: Path) -> None:
    """Those not durable yet are not on disk: each run is taken from where it is."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 1, b"old"))
            await log.commit(Run(2, 1, 1, 1, bytes(6000)))
            assert log.read_cached(1, 1) is None
            log.append(1, term=1, first_index=2, count=1, payload=b"new")
            assert [bytes(r.payload) for r in await log.read(1, 1)] == [b"old", b"new"]
            cached = log.read_cached(1, 2)
            assert cached is not None
            assert bytes(cached[0].payload) == b"new"

    run(main())


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.close()
            with pytest.raises(ShuttingDown, match="closed"):
                log.append(1, term=1, first_index=1, count=1, payload=b"")
            with pytest.raises(ShuttingDown, match="closed"):
                await log.sync()

    run(main())


def test_more_than_the_bound_of_waiting_bytes_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        settings = LogSettings(segment_bytes=16 << 10, pending_bytes_max=64 << 10)
        async with opened(tmp_path, settings) as log:
            index = 1
            with pytest.raises(Overloaded, match="wait for the disk"):
                for index in range(1, 1000):
                    log.append(1, term=1, first_index=index, count=1, payload=bytes(1000))
            assert 50 < index < 70
            await log.sync()
            log.append(1, term=1, first_index=index, count=1, payload=bytes(1000))

    run(main())


def test_the_index_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        settings = LogSettings(segment_bytes=16 << 10, runs_live_max=3)
        async with opened(tmp_path, settings) as log:
            for index in (1, 2, 3):
                log.append(1, term=1, first_index=index, count=1, payload=b"")
            with pytest.raises(Overloaded, match="runs_live_max"):
                log.append(1, term=1, first_index=4, count=1, payload=b"")
            log.write((TruncateHead(1, 1),))
            log.append(1, term=1, first_index=4, count=1, payload=b"")

    run(main())


def test_truncated_groups_give_their_room_back_and_a_cold_group_pins_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 1, b"cold"), SetState(1, b"vote"), TruncateHead(3, 41))
            for index in range(1, 400):
                await log.commit(Run(2, 1, index, 1, bytes(1000)))
                if index > 10:
                    log.write((TruncateHead(2, index - 10),))
            await until(lambda: log.statistics().segments <= 6)
            before = await contents(log)
        assert len(segments(tmp_path)) <= 6
        assert not (tmp_path / "log/0000000001.segment").exists()
        async with opened(tmp_path) as log:
            assert await contents(log) == before
            assert bytes((await log.read(1, 1))[0].payload) == b"cold"
            assert log.state(1) == b"vote"
            assert log.bounds(3).head == 42

    run(main())


def test_live_data_is_moved_when_dead_data_behind_it_grows(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            for index in range(1, 20):  # the oldest segment is full of what stays
                await log.commit(Run(1, 1, index, 1, bytes([index]) * 700))
            for index in range(1, 200):
                await log.commit(Run(2, 1, index, 1, bytes(1000)))
            log.write((DropGroup(2),))
            await until(lambda: log.statistics().segments <= 6)
            before = await contents(log)
            assert len(before[1].runs) == 19
        async with opened(tmp_path) as log:
            assert await contents(log) == before

    run(main())


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 1, b"kept"))
            before = await contents(log)
        last = segments(tmp_path)[-1]
        size = last.stat().st_size
        with last.open("r+b") as file:
            file.seek(size)
            file.write(os.urandom(3000))
        async with opened(tmp_path) as log:
            assert await contents(log) == before
            await log.commit(Run(1, 1, 2, 1, b"more"))
        async with opened(tmp_path) as log:
            assert [bytes(r.payload) for r in await log.read(1, 1)] == [b"kept", b"more"]

    run(main())


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Nothing that was acked is lost or comes back changed, wherever a bit flips."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            for index in range(1, 5):
                await log.commit(
                    Run(1, 1, index, 1, bytes([index]) * 30), SetState(1, b"s%d" % index)
                )
            before = await contents(log)
        refused = 0
        (path,) = segments(tmp_path)
        data = path.read_bytes()
        used = max(i for i, byte in enumerate(data) if byte) + 1
        # The last flush is the mark which says that all before it is synced.
        for offset in range(used):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << offset % 8
            path.write_bytes(flipped)
            try:
                async with opened(tmp_path) as log:
                    assert await contents(log) == before, offset
            except (StoreDamaged, UnsupportedVersion) as error:
                refused += 1
                assert str(path) in error.message
            for leftover in segments(tmp_path):
                leftover.unlink()
            path.write_bytes(data)
        assert refused > used * 0.7

    run(main())


def test_a_missing_segment_in_the_middle_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            for index in range(1, 60):
                await log.commit(Run(1, 1, index, 1, bytes(1000)))
        for victim in segments(tmp_path)[:3]:
            hidden = victim.with_suffix(".hidden")
            victim.rename(hidden)
            with pytest.raises(StoreDamaged, match=victim.name):
                async with opened(tmp_path):
                    pass
            hidden.rename(victim)

    run(main())


def test_a_segment_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.commit(Run(1, 1, 1, 1, b""))
        (path,) = segments(tmp_path)
        data = bytearray(path.read_bytes())
        data[8] = 2
        data[32:40] = xxh3_64_intdigest(bytes(data[:32])).to_bytes(8, "little")
        path.write_bytes(data)
        with pytest.raises(UnsupportedVersion, match="format 2"):
            async with opened(tmp_path):
                pass
        assert path.read_bytes() == data

    run(main())


def test_damage_found_while_reading_names_file_and_entries(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            for index in range(1, 30):
                await log.commit(Run(1, 1, index, 1, b"%04d" % index * 200))
            victim = segments(tmp_path)[0]
            with victim.open("r+b") as file:
                file.seek(500)
                file.write(b"\xff")
            with pytest.raises(StoreDamaged, match=rf"{victim.name}.*index 1 on"):
                await log.read(1, 1)

    run(main())


@pytest.mark.parametrize("settings", [SMALL, LogSettings()], ids=["many segments", "one"])
def test_a_log_that_is_given_up_with_writes_waiting_does_not_end_the_process(
    tmp_path: Path, settings: LogSettings
) -> None:
    """A store that is in doubt after a crash is stopped so, in the middle of whatever it writes."""
    reasons: list[str] = []

    async def main() -> None:
        with real_environment() as real:
            environment = msgspec.structs.replace(real, end_process=reasons.append)
            log = await SegmentLog.open(environment, f"{tmp_path}/log", settings)
            for index in range(1, 101):
                log.append(1, term=1, first_index=index, count=1, payload=bytes(4_000))
                if index % 10 == 0:
                    await asyncio.sleep(0)  # flushes are on their way, and more are waiting
            await log.abandon()
            with pytest.raises(ShuttingDown):
                await log.sync()
            # Behind all that came back from the disk.
            await perform(real.files, seam.SyncDirectory(str(tmp_path)))
            for _ in range(5):
                await asyncio.sleep(0)
        async with opened(tmp_path, settings) as log:
            assert log.groups() in ([], [1])

    run(main())
    assert not reasons
