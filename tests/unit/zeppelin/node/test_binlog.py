"""The binlog gives engines what is synced, for a bounded part of each turn of the loop."""

import asyncio
from typing import Any

import pytest

from raftwood.disk.segment_log import Run
from raftwood.testing.loop import SimulatedLoop
from raftwood.zeppelin.node.binlog import Binlog
from raftwood.zeppelin.node.readable_partition import Overlay
from raftwood.zeppelin.records import KeyWrite
from tests.kits.running import in_virtual_time, until
from tests.kits.turns import counting

WRITE_S = 2e-6
"""What the engine takes for each."""


class NoLog:
    """What a binlog asks of its log at the start."""

    write_bytes_max = 8 << 20


class Writer:
    """A partition whose records are synced, and wait for its engine."""

    syncs_at_once = False

    def __init__(self, count: int, *, room: int) -> None:
        self.backlog_writes = count
        self.applied = 0
        self._room = room

    @property
    def backlog(self) -> float:
        return self.backlog_writes / self._room

    @property
    def unapplied_count(self) -> int:
        return self.backlog_writes

    def apply_some(self, writes_max: int) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        count = min(writes_max, self.backlog_writes)
        loop.now += count * WRITE_S
        self.backlog_writes -= count
        self.applied += count
        return count

    def take_runs(self) -> list[Run]:
        return []

    def logged(self) -> None: ...

    def written(self, sequence: int) -> None: ...

    def synced(self, sequence: int) -> None: ...


@pytest.mark.parametrize(("room", "seconds"), [(1_000_000, 0.002), (22_000, 0.020)])
def test_a_turn_applies_for_so_long_and_for_longer_before_writes_are_refused(
    room: int, seconds: float
) -> None:
    async def main() -> None:
        log: Any = NoLog()
        binlog = Binlog(log, sync_interval_ms=50)
        writers = [Writer(20_000, room=room) for _ in range(3)]
        most_allowed = seconds / WRITE_S + 512
        async with counting(lambda: sum(each.applied for each in writers)) as most:
            for each in writers:
                binlog.apply_later(each)
            await until(lambda: not any(each.backlog_writes for each in writers))
        assert most_allowed / 2 < most.in_a_turn <= most_allowed

    in_virtual_time(main())


def test_what_a_cache_forgets_is_freed_before_the_next_generation_is_full() -> None:
    overlay = Overlay(100_000)
    for number in range(2_000):
        key = b"%d" % number
        write = KeyWrite(key, b"v" * 100)
        overlay.unapplied.clear()
        overlay.put([write])
        was_forgotten, was_young = len(overlay._forgotten), len(overlay.young)
        overlay.grow(400)
        is_new_generation = len(overlay.young) < was_young
        if is_new_generation:
            assert was_forgotten <= 6
        else:
            assert was_forgotten - len(overlay._forgotten) <= 6, "a few at a time"
        held = len(overlay.young) + len(overlay._old) + len(overlay._forgotten)
        assert held * 400 <= 100_000 + 4_000
        assert overlay.find(key) is write
    assert overlay.find(b"1") is None
