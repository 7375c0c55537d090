"""One partition moves again and again, and at each step of that somebody fails in each way.

Whoever gave the partition away gets it back later, with all that its disk has kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from unittest.mock import patch

import msgspec

from raftwood.testing import Simulation, SimulationReport
from raftwood.zeppelin.meta.changes import CancelMigration, Migrate
from raftwood.zeppelin.model import Partition, PartitionState, TableConfig
from raftwood.zeppelin.node import server
from tests.kits.models import Violation, run_scenario
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.moving import MovingWorld
from tests.kits.zeppelin.simulation.world import NAMES, TABLE, watched

TWO_ACKS = TableConfig(partitions=1, replicas=3, ack="synced", min_replicas=2)
ONE_ACK = TableConfig(partitions=1, replicas=3, ack="written", min_replicas=1)
LASTING_S = (0.2, 1.2)
"""Shorter and longer than it takes until somebody is known to be down."""
STEP_S_MAX = 10.0
MOVE_S_MAX = 20.0


class Step(StrEnum):
    """How far a migration is."""

    ORDERED = "ordered"
    CATCHING_UP = "catching up"
    FROZEN = "frozen"
    HANDED_OVER = "handed over"
    DONE = "done"


class Who(StrEnum):
    """Whom something happens to."""

    SOURCE = "source"
    TARGET = "target"
    OTHER = "other replica"
    LEADER = "leader of the meta server"


class How(StrEnum):
    """What happens."""

    POWER = "loses power"
    PAUSE = "is stopped"
    CUT = "is cut off"
    LINK = "does not reach the target"
    CANCEL = "is told to let it be"


class Failure(msgspec.Struct, frozen=True):
    """What goes wrong in one migration, of a master or a slave."""

    step: Step
    who: Who
    how: How
    lasting_s: float
    is_of_master: bool = True


def failures_of(who: Who, *, is_of_master: bool) -> list[Failure]:
    """All that can happen to somebody in a migration."""
    steps = [Step.ORDERED, Step.CATCHING_UP]
    if is_of_master:
        steps += [Step.FROZEN, Step.HANDED_OVER]
    ways = [How.POWER] if who is Who.LEADER else [How.POWER, How.PAUSE, How.CUT]
    return [
        Failure(step, who, how, lasting_s, is_of_master)
        for step in steps
        for how in ways
        for lasting_s in LASTING_S
    ]


def in_turns(failures: list[Failure]) -> list[Failure]:
    """Half of them: each step and each way, now short, now long."""
    return [each for place, each in enumerate(failures) if place % 4 in (0, 3)]


def step_of(known: Partition) -> Step:
    moved = known.migration
    if moved is None:
        return Step.DONE
    if moved.target not in known.replicas:
        return Step.ORDERED
    if known.master == moved.target:
        return Step.HANDED_OVER
    is_frozen = known.state is PartitionState.STUCK and known.target == moved.target
    return Step.FROZEN if is_frozen else Step.CATCHING_UP


class SteppedWorld(MovingWorld):
    """Four nodes, of which three have the partition."""

    async def run_failures(self, failures: list[Failure]) -> int:
        """How many of them came to their step: a failover may make some needless."""
        async with self.running(has_noise=False):
            for caller in self.callers:
                caller.start()
            self.join("n4")
            await self._until(lambda: len(self.meta.topology.nodes) == len(NAMES) + 1, timeout_s=5)
            reached = 0
            for failure in failures:
                reached += await self._move(failure)
            self.is_writing = False
            await self._until(lambda: all(each.is_done for each in self.callers), timeout_s=30)
            await self.become_equal()
            self._check_all()
        return reached

    @property
    def _known(self) -> Partition:
        return self.meta.topology.tables[TABLE].partitions[0]

    async def _move(self, failure: Failure) -> bool:
        before = self._known
        assert before.master is not None
        source = before.master if failure.is_of_master else before.slaves[0]
        (target,) = [each for each in self.meta.topology.nodes if each not in before.replicas]
        other = next(each for each in before.replicas if each != source)
        victims = {Who.SOURCE: source, Who.TARGET: target, Who.OTHER: other}
        with self._first_at(failure.step) as came:
            done = await self.meta.client.apply(Migrate(TABLE, 0, source, target))
            assert done.results == (None,), done
            is_reached = await came()
        if is_reached:
            self.orders.failure()
            if failure.how is How.CANCEL:
                await self.meta.client.apply(CancelMigration(TABLE, 0))
            elif failure.who is Who.LEADER:
                await self.meta.change_leader(after_s=failure.lasting_s)
            else:
                name = self.meta.name_of(victims[failure.who])
                await self._fail(name, failure, target=self.meta.name_of(target))
        await self._until(self._is_whole, timeout_s=MOVE_S_MAX)
        return is_reached

    @contextmanager
    def _first_at(self, step: Step) -> Iterator[Callable[[], Awaitable[bool]]]:
        """Tells when a migration is at a step, at the very moment, or that it has passed it."""
        has_begun, here, over = False, asyncio.Event(), asyncio.Event()

        def look(_: object) -> None:
            nonlocal has_begun
            now = step_of(self._known)
            has_begun = has_begun or now is not Step.DONE
            if now is step:
                here.set()
            if has_begun and now is Step.DONE:
                over.set()

        async def came() -> bool:
            waiting = [asyncio.create_task(each.wait()) for each in (here, over)]
            done, _ = await asyncio.wait(
                waiting, timeout=STEP_S_MAX, return_when=asyncio.FIRST_COMPLETED
            )
            for each in waiting:
                each.cancel()
            if not done:
                raise Violation(Harm.STALLED, f"{self._known} does not come to {step}")
            return here.is_set()

        self.meta.watchers.append(look)
        try:
            yield came
        finally:
            self.meta.watchers.remove(look)

    async def _fail(self, name: str, failure: Failure, *, target: str) -> None:
        node, network = self.nodes[name], self.simulation.network
        match failure.how:
            case How.POWER:
                node.break_down(loses_power=True)
            case How.PAUSE:
                node.machine.pause()
            case How.LINK:
                network.partition([name], [target])
            case _:
                network.partition([name], [each for each in self.nodes if each != name])
                self.meta.cut_off[name] = None
        await asyncio.sleep(failure.lasting_s)
        self.heal()

    def _is_whole(self) -> bool:
        """Whether it has moved, and all replicas can do without any one of them."""
        self.orders.check()
        known = self._known
        return (
            step_of(known) is Step.DONE
            and known.state is PartitionState.ACTIVE
            and not known.lagging
            and not known.unproven
            and all(node.is_up for node in self.meta.topology.nodes.values())
        )

    def _check_all(self) -> None:
        self.orders.check()
        self._check_callers()


def run_failures(
    failures: list[Failure],
    *,
    seed: int = 0,
    config: TableConfig = TWO_ACKS,
    is_calm: bool = False,
) -> SimulationReport[int]:
    """One world, one migration after the other; a calm one has no failure by which what one
    replica alone has acked could be lost.
    """

    async def scenario(simulation: Simulation) -> int:
        world = SteppedWorld(simulation, config, is_calm=is_calm)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            return await world.run_failures(failures)

    return run_scenario("migrations", seed, scenario)
