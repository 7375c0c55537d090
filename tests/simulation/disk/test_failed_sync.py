"""After a failed sync the page cache shows what the disk may never have got."""

import asyncio

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import DataSync
from raftwood.disk.segment_log import LogSettings, Run
from raftwood.disk.store import Store
from raftwood.testing import Simulation, simulate

SETTINGS = LogSettings(segment_bytes=16 << 10, flush_bytes_max=4 << 10, pending_bytes_max=64 << 10)


async def _opened(environment: Environment) -> Store:
    return await Store.open(environment, "/data/store", cluster="c", store=1, settings=SETTINGS)


async def _append(store: Store) -> None:
    next_index = store.log.bounds(1).next_index if 1 in store.log.groups() else 1
    await store.log.commit(Run(1, 1, next_index, 1, b"x" * 700))


@pytest.mark.parametrize("seed", range(8))
def test_what_was_recovered_after_a_failed_sync_survives_power_loss(seed: int) -> None:
    """The kernel calls such pages clean, so that a second sync succeeds without writing them."""

    async def scenario(simulation: Simulation) -> None:
        seen: list[int] = []

        async def until_a_sync_fails(environment: Environment) -> None:
            store = await _opened(environment)
            for _ in range(3):
                await _append(store)
            machine.disk.fail_next(DataSync)
            await _append(store)

        async def go_on(environment: Environment) -> None:
            store = await _opened(environment)
            seen.append(store.log.bounds(1).next_index)
            await _append(store)
            await asyncio.sleep(1e6)

        async def look(environment: Environment) -> None:
            store = await _opened(environment)
            seen.append(store.log.bounds(1).next_index)
            await store.close()

        machine = simulation.add_node("a")
        machine.start(until_a_sync_fails)
        await simulation.wait_until(lambda: not machine.running)
        machine.start(go_on)
        await asyncio.sleep(1)
        machine.power_off()
        machine.start(look)
        await simulation.wait_until(lambda: not machine.running)
        assert seen[1] == seen[0] + 1

    simulate(seed, scenario)
