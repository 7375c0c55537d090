"""Processes that share a log, in virtual time: owners are killed, stopped and cut off by seed."""

import asyncio
import random

import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position
from raftwood.dlog.shared.shared_logs import SharedLogs
from tests.kits.base.log_suite import read_all
from tests.kits.dlog.shared_world import SharedWorld, run_shared

NAMES = ("g1", "g2", "g3")


class _Writers:
    """One on each machine; each appends its numbers one after the other, each until it is acked."""

    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self.acked: dict[tuple[str, int], Position] = {}
        self.is_on = True

    async def write(self, name: str) -> None:
        number = 0
        while self.is_on:
            await self._append(name, number)
            number += 1
            await asyncio.sleep(0.03)

    async def _append(self, name: str, number: int) -> None:
        """Through whichever process is there; a try that hangs in a dead one is given up."""
        chosen = random.Random(f"{name}/{number}")
        while True:
            there = chosen.choice(NAMES)
            if there not in self._world.logs:
                await asyncio.sleep(0.1)
                continue
            work = _appended(self._world.logs[there], name, number)
            try:
                position = await self._world.within(there, work, timeout_s=8)
            except (RaftwoodError, TimeoutError):
                await asyncio.sleep(0.05)
                continue
            known = self.acked.setdefault((name, number), position)
            assert known == position
            return


async def _appended(logs: SharedLogs, name: str, number: int) -> Position:
    log = await logs.open("log")
    return await log.append(f"{name}/{number}".encode(), producer=name, sequence=number)


async def _faults(world: SharedWorld, seed: int) -> int:
    """Kill or stop whoever owns the log, again and again; how often."""
    source = random.Random(seed)
    count = 0
    for _ in range(6):
        await asyncio.sleep(source.uniform(0.5, 3))
        owner = world.owner("log")
        if not owner:
            continue
        count += 1
        if source.random() < 0.5:
            world.machines[owner].kill()
            world.logs.pop(owner, None)
            await asyncio.sleep(source.uniform(0, 4))
            await world.start(owner)
        else:
            world.machines[owner].pause()
            await asyncio.sleep(source.uniform(0.1, 6))
            world.machines[owner].resume()
    return count


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acked_is_there_once_and_in_order_whatever_happens_to_owners(seed: int) -> None:
    async def scenario(world: SharedWorld) -> None:
        for name in NAMES:
            await world.start(name)
        await world.logs["g1"].create("log")
        writers = _Writers(world)
        tasks = [asyncio.create_task(writers.write(f"w{number}")) for number in range(3)]
        assert await _faults(world, seed) > 0
        await asyncio.sleep(5)
        writers.is_on = False
        await asyncio.gather(*tasks)
        found = await read_all(await world.logs["g2"].open("log"))
        texts = [data.decode() for _, data in found]
        assert len(texts) == len(set(texts)), "a batch is there twice"
        places = dict(found)
        for (name, number), position in writers.acked.items():
            assert places[position] == f"{name}/{number}".encode()
        for name in ("w0", "w1", "w2"):
            numbers = [int(each.split("/")[1]) for each in texts if each.startswith(name)]
            assert numbers == list(range(len(numbers))), f"{name} is out of order"
        assert len(writers.acked) > 100

    run_shared(scenario, seed=seed)
