"""A process that takes over finds the tenure of the one before."""

import asyncio
import random

import pytest

from raftwood.base.errors import SequenceForgotten
from raftwood.base.position import Position
from raftwood.capture.events import Point
from raftwood.capture.lane import LaneTakenOver
from tests.kits.capture.memory_stream import MemoryStream
from tests.kits.capture.story import PLACES, Process, told


def test_a_tenure_that_is_not_read_back_is_found_by_trying() -> None:
    chance = random.Random(1)

    async def main() -> None:
        stream = MemoryStream(chance)
        stream.is_faulty = False
        first = Process(stream, chance, 1)
        await first.lanes[0].begin(1_000, time_ns=10**9)
        second = Process(stream, chance, 2)
        with pytest.raises(SequenceForgotten):
            await second.lanes[0].begin(3, time_ns=10**9)
        with pytest.raises(LaneTakenOver):
            await second.lanes[0].join(3, time_ns=10**9)
        with pytest.raises(LaneTakenOver):
            await second.lanes[0].join(1_000, time_ns=10**9)
        await second.run({0: Position(1)}, 2)
        assert all(told(stream, partition) == [1, 2] for partition in PLACES)
        with pytest.raises(LaneTakenOver):
            await first.lanes[0].put(b"", 1, Point())

    asyncio.run(main())
