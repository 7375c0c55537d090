"""Random writes against the model, under settings that make rare things frequent."""

import asyncio
import random

import msgspec
import pytest

from raftwood.base.errors import DiskFull, Overloaded
from raftwood.disk.segment_log import LogSettings, SegmentLog
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import LogModel, contents
from tests.kits.disk.log_in_memory import SMALL, open_log, run

SETTINGS = {
    "tiny flushes": msgspec.structs.replace(SMALL, flush_bytes_max=4 << 10),
    "always compacting": msgspec.structs.replace(SMALL, live_percent_min=100),
    "never compacting by share": msgspec.structs.replace(SMALL, live_percent_min=0),
    "few bytes may wait": msgspec.structs.replace(SMALL, pending_bytes_max=64 << 10),
    "a small cache": msgspec.structs.replace(SMALL, cache_bytes_max=8 << 10),
    "large segments": msgspec.structs.replace(SMALL, segment_bytes=256 << 10),
}


async def _life(
    log: SegmentLog, files: ImmediateFiles, rng: random.Random, model: LogModel, writes: int
) -> LogModel:
    """Write at random, on a disk that is full at times; the model of what was taken."""
    disk = files.file_system
    for _ in range(writes):
        future = model.copy()
        records = model.random_write(rng, groups=4, bytes_max=1500)
        future.apply(records)
        try:
            log.write(records)
            model = future
        except (DiskFull, Overloaded):
            await asyncio.sleep(0.001)
        draw = rng.random()
        if draw < 0.02:
            disk.capacity_bytes = disk.used_bytes() + rng.randrange(40_000)
        elif draw < 0.06:
            disk.capacity_bytes = None
        elif draw < 0.15:
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
        elif draw < 0.2:
            assert await contents(log) == model.groups
    disk.capacity_bytes = None
    return model


async def check(settings: LogSettings, seed: int, *, lives: int, writes: int) -> None:
    rng, model, files = random.Random(seed), LogModel(), ImmediateFiles()
    for _ in range(lives):
        log = await open_log(files, settings)
        assert await contents(log) == model.groups
        model = await _life(log, files, rng, model, writes)
        await asyncio.sleep(0.1)
        assert await contents(log) == model.groups
        assert log._live.total == sum(log._live._by_segment.values())
        assert log.statistics().runs == sum(len(group.runs) for group in model.groups.values())
        await log.close()
        assert not files.session.opened


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(2))
def test_any_mix_of_writes_equals_the_model(name: str, seed: int) -> None:
    run(check(SETTINGS[name], seed, lives=3, writes=150))


@pytest.mark.parametrize("seed", range(3))
def test_settings_may_change_between_two_starts(seed: int) -> None:
    async def main() -> None:
        rng, model, files = random.Random(seed), LogModel(), ImmediateFiles()
        for _ in range(6):
            log = await open_log(files, rng.choice(list(SETTINGS.values())))
            assert await contents(log) == model.groups
            model = await _life(log, files, rng, model, 80)
            await asyncio.sleep(0.1)
            await log.close()

    run(main())
