"""Twenty writers contend for a log, crash and rotate, while bookies are killed and come back: on
bookies in this process, as processes, and on Apache BookKeeper's.

The writers, what happens to them and what must then hold are the simulation's own.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from raftwood.dlog.ledgers.seams import LedgerStore
from tests.kits.dlog.simulation import Plan, Report, World, run_world
from tests.kits.dlog.sites import Seat, Site
from tests.kits.running import run

PLAN = Plan(
    sessions=2,
    messages=12,
    entries_max=2,
    delay_ms=1,
    grace_ms=10_000,
    writing_s_max=60,
    administer_s=2,
)
KILLS_MAX = 2
PROCESSES = 4
"""So many share the writers among them."""


class RealWorld(World):
    def __init__(self, seed: int, site: Site, seats: list[Seat]) -> None:
        super().__init__(seed, PLAN, seats[0].environment, seats[0].store)
        self._site = site
        self._seats = seats
        self.kills = 0

    @property
    def has_bookies(self) -> bool:
        return True

    def ledgers(self) -> LedgerStore:
        return self.rng.choice(self._seats).ledgers

    async def befall(self) -> None:
        """One bookie at a time is killed, and comes back."""
        ids = [each.id for each in await self._seats[0].metadata.bookies()]
        while not self.is_over and self.kills < KILLS_MAX:
            bookie = self.rng.choice(ids)
            await asyncio.sleep(self.rng.random() * 0.3)
            await self._site.kill(bookie)
            self.kills += 1
            try:
                await asyncio.sleep(self.rng.random() * 0.6)
            finally:
                await self._site.mend(bookie)


@pytest.mark.parametrize("seed", [9])
def test_every_acked_message_is_there_once_in_order_and_without_a_hole(
    site: Site, seed: int
) -> None:
    async def main() -> tuple[Report, int]:
        async with site.running(), AsyncExitStack() as stack:
            seats = [await stack.enter_async_context(site.seat()) for _ in range(PROCESSES)]
            world = RealWorld(seed, site, seats)
            report = await run_world(world)
            await world.close()
            return report, world.kills

    report, kills = run(main())
    assert kills
    assert report.acked > 20
    assert report.takeovers > PLAN.writers
