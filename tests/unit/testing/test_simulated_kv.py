"""The simulated key-value engine is ordered, atomic, and forgets what was not flushed."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kits.disk.kv_suite import KvSuite

from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, ShuttingDown, StoreLocked
from raftwood.base.seams import Delete, DeleteRange, KvEngine, Put
from raftwood.testing import SimulatedKvDisk, SimulatedLoop, Simulation, simulate


class TestSimulatedEngine(KvSuite):
    """What RocksDB's engine passes, in virtual time."""

    disk: SimulatedKvDisk

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[KvEngine]:
        engine = self.disk.open(folder)
        try:
            yield engine
        finally:
            await engine.close()

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def scenario(simulation: Simulation) -> None:
            self.disk = SimulatedKvDisk(simulation.loop)
            await main

        simulate(1, scenario)


async def use_engine(disk: SimulatedKvDisk) -> None:
    engine: KvEngine = disk.open("kv")
    engine.write_batch([Put(b"b", b"2"), Put(b"a", b"1"), Put(b"c", b"3"), Put(b"d", b"4")])
    assert engine.get(b"a") == b"1"
    assert await engine.multi_get([b"c", b"x"]) == [b"3", None]
    scan = engine.scan(b"b")
    engine.write_batch([Delete(b"b"), DeleteRange(b"c", b"d"), Put(b"e", b"5")])
    assert [key for key, _ in scan] == [b"b", b"c", b"d"]
    assert list(engine.scan()) == [(b"a", b"1"), (b"d", b"4"), (b"e", b"5")]
    assert [key for key, _ in engine.scan(b"a", b"e", reverse=True)] == [b"d", b"a"]
    with pytest.raises(StoreLocked, match="open already"):
        disk.open("kv")
    await engine.checkpoint("copy")
    engine.write_batch([Put(b"a", b"later")])
    with pytest.raises(AlreadyExists):
        await engine.checkpoint("copy")
    assert disk.open("copy").get(b"a") == b"1"
    await engine.close()
    assert disk.open("kv").get(b"a") == b"later"


def test_the_engine_does_what_the_seam_says() -> None:
    loop = SimulatedLoop(1)
    loop.run_until_complete(use_engine(SimulatedKvDisk(loop)))
    loop.close()


def test_a_scan_equals_a_sorted_dict() -> None:
    loop = SimulatedLoop(1)
    engine = SimulatedKvDisk(loop).open("kv")
    model: dict[bytes, bytes] = {}
    source = random.Random(1)
    for _ in range(500):
        key = source.randbytes(1)
        if source.random() < 0.6:
            engine.write_batch([Put(key, b"v")])
            model[key] = b"v"
        else:
            engine.write_batch([Delete(key)])
            model.pop(key, None)
        assert list(engine.scan()) == sorted(model.items())
    loop.close()


@pytest.mark.parametrize("way", ["kill", "power_off"])
def test_a_crash_keeps_what_was_flushed_and_a_beginning_of_the_rest(way: str) -> None:
    left: set[int] = set()
    for seed in range(15):

        async def scenario(simulation: Simulation) -> None:
            async def program(_: Environment) -> None:
                engine = machine.kv_disk.open("kv")
                for number in range(10):
                    engine.write_batch([Put(b"%d" % number, b""), Put(b"applied", b"%d" % number)])
                    if number == 4:
                        await engine.flush()
                await asyncio.sleep(1e6)

            machine = simulation.add_node("a")
            machine.start(program)
            await asyncio.sleep(1)
            getattr(machine, way)()
            engine = machine.kv_disk.open("kv")
            applied = int(engine.get(b"applied") or b"-1")
            assert [engine.get(b"%d" % number) is not None for number in range(10)] == [
                number <= applied for number in range(10)
            ]
            left.add(applied)

        simulate(seed, scenario)
    assert left == {4, 5, 6, 7, 8, 9}


def test_an_engine_of_a_crashed_process_can_do_nothing() -> None:
    loop = SimulatedLoop(1)
    disk = SimulatedKvDisk(loop)
    engine = disk.open("kv")
    disk.crash()
    with pytest.raises(ShuttingDown, match="crashed"):
        engine.write_batch([Put(b"a", b"")])
    loop.close()


def test_a_flush_takes_time_and_covers_what_was_written_before_it() -> None:
    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            engine = machine.kv_disk.open("kv")
            engine.write_batch([Put(b"before", b"")])
            async with asyncio.TaskGroup() as group:
                group.create_task(engine.flush())
                group.create_task(engine.flush())
                await asyncio.sleep(0)
                engine.write_batch([Put(b"after", b"")])
            assert simulation.now > 0.001
            await asyncio.sleep(1e6)

        machine = simulation.add_node("a")
        machine.start(program)
        await asyncio.sleep(1)
        machine.power_off()
        engine = machine.kv_disk.open("kv")
        assert engine.get(b"before") == b""
        left.add(engine.get(b"after"))

    left: set[bytes | None] = set()
    for seed in range(10):
        simulate(seed, scenario)
    assert left == {b"", None}
