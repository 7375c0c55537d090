"""Processes that share a log, in virtual time: owners are killed, stopped and cut off by seed."""

import asyncio
import random

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position
from raftwood.dlog.shared_logs import SharedLogs
from tests.kits.base.log_suite import read_all
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.shared_world import SharedWorld, run_shared
from tests.kits.models import Violation

NAMES = ("g1", "g2", "g3")


class Writers:
    """One on each machine; each appends its numbers one after the other, each until it is acked."""

    def __init__(self, world: SharedWorld, pause_s: float) -> None:
        self._world = world
        self._pause_s = pause_s
        self.acked: dict[tuple[str, int], Position] = {}
        self.is_on = True

    async def write(self, name: str) -> None:
        number = 0
        while self.is_on:
            await self._append(name, number)
            number += 1
            await asyncio.sleep(self._pause_s)

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
    return await log.append([f"{name}/{number}".encode()], producer=name.encode(), sequence=number)


async def _faults(world: SharedWorld, seed: int, count: int) -> int:
    """Kill or stop whoever owns the log, again and again; how often there was one."""
    source = random.Random(seed)
    done = 0
    for _ in range(count):
        await asyncio.sleep(source.uniform(0.5, 3))
        owner = world.owner("log")
        if not owner:
            continue
        done += 1
        if source.random() < 0.5:
            world.machines[owner].kill()
            world.logs.pop(owner, None)
            await asyncio.sleep(source.uniform(0, 4))
            await world.start(owner)
        else:
            world.machines[owner].pause()
            await asyncio.sleep(source.uniform(0.1, 6))
            world.machines[owner].resume()
    return done


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    acked: int
    faults: int
    faults_s: float


def run_owners(seed: int, *, faults: int = 6, pause_s: float = 0.03, twice: bool = False) -> Report:
    """What was acked is there once and in order; or it raises."""

    async def scenario(world: SharedWorld) -> Report:
        for name in NAMES:
            await world.start(name)
        await world.logs["g1"].create("log")
        writers = Writers(world, pause_s)
        tasks = [asyncio.create_task(writers.write(f"w{number}")) for number in range(3)]
        began = world.simulation.now
        done = await _faults(world, seed, faults)
        faults_s = world.simulation.now - began
        await asyncio.sleep(5)
        writers.is_on = False
        await asyncio.gather(*tasks)
        _check(await read_all(await world.logs["g2"].open("log")), writers)
        return Report(len(writers.acked), done, faults_s if done else 0.0)

    return run_shared(scenario, seed=seed, twice=twice)


def _check(found: list[tuple[Position, bytes]], writers: Writers) -> None:
    texts = [data.decode() for _, data in found]
    if len(texts) != len(set(texts)):
        raise Violation(Harm.TWICE, texts)
    places = dict(found)
    for (name, number), position in writers.acked.items():
        if places.get(position) != f"{name}/{number}".encode():
            raise Violation(Harm.LOST, f"{name}/{number} of {position:#x}")
    for name in ("w0", "w1", "w2"):
        numbers = [int(each.split("/")[1]) for each in texts if each.startswith(name)]
        if numbers != list(range(len(numbers))):
            raise Violation(Harm.OUT_OF_ORDER, f"{name}: {numbers}")
